-- Collateral: echoes by signature, with the ranks that printed them.
-- Grain: one row per incident and signature.
CREATE OR REPLACE TEMP TABLE collateral AS
SELECT
    incident,
    signature,
    coalesce(list_sort(list_distinct(list(rank) FILTER (rank IS NOT NULL))), []) AS ranks,
    count(*) AS copies,
    arg_min(id, coalesce(seq, 1099511627776)) AS first_id,
    any_value(role) AS role
FROM events
WHERE role IN ('cascade', 'teardown')
   OR (role = 'initiating' AND EXISTS (
       SELECT 1 FROM explanations AS x WHERE x.incident = events.incident AND x.effect_id = events.id))
GROUP BY incident, signature;
