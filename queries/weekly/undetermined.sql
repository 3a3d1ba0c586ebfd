-- Which kind of evidence the undetermined failures lacked, and how often others that had it were settled.
-- Grain: one row per kind of evidence. Base: failed runs of the period; a kind was there if the ledger says that it was
-- collected, whole or in part. lacking counts undetermined failures without it.
WITH had AS (
    SELECT DISTINCT l.incident, l.kind
    FROM ledger l
    WHERE l.outcome IN ('collected', 'truncated') AND l.kind IS NOT NULL
),
crossed AS (
    SELECT f.incident, f.determined, k.kind, h.incident IS NOT NULL AS present
    FROM failed_runs f
    CROSS JOIN evidence_kinds k
    LEFT JOIN had h ON h.incident = f.incident AND h.kind = k.kind
    WHERE f.period = 0
)
SELECT
    kind,
    sum(CASE WHEN NOT determined AND NOT present THEN 1 ELSE 0 END) AS lacking,
    sum(CASE WHEN NOT determined THEN 1 ELSE 0 END) AS undetermined,
    sum(CASE WHEN present THEN 1 ELSE 0 END) AS with_it,
    sum(CASE WHEN present AND determined THEN 1 ELSE 0 END) AS settled_with,
    sum(CASE WHEN NOT present THEN 1 ELSE 0 END) AS without_it,
    sum(CASE WHEN NOT present AND determined THEN 1 ELSE 0 END) AS settled_without
FROM crossed
GROUP BY kind
ORDER BY lacking DESC, kind
