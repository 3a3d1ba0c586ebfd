-- Candidates: unexplained initiating events, joined over the ranks that failed in the same way.
-- Grain: one row per incident and distinct failure. A candidate without a rank takes the ranks of what it explains
-- on its own node.
CREATE OR REPLACE TEMP TABLE candidates_raw AS
WITH standing AS (
    SELECT e.*,
        concat_ws('|', e.signature, e.kind, CASE WHEN e.scope IN ('node') THEN e.node END) AS failure
    FROM events AS e
    WHERE e.role = 'initiating'
      AND NOT EXISTS (SELECT 1 FROM explanations AS x WHERE x.incident = e.incident AND x.effect_id = e.id)
),
inherited AS (
    SELECT s.incident, s.id, list_distinct(flatten(list(effect.subject_ranks))) AS ranks
    FROM standing AS s
    JOIN explanations AS x ON x.incident = s.incident AND x.cause_id = s.id
    JOIN events AS effect ON effect.incident = x.incident AND effect.id = x.effect_id
    WHERE s.subject IS NULL AND len(s.subject_ranks) = 0 AND s.scope IN ('rank', 'node')
      AND (s.node IS NULL OR effect.node IS NULL
          OR lower(split_part(s.node, '.', 1)) = lower(split_part(effect.node, '.', 1)))
    GROUP BY s.incident, s.id
),
named AS (
    SELECT s.*, CASE WHEN len(s.subject_ranks) = 0 THEN coalesce(i.ranks, []) ELSE s.subject_ranks END AS who
    FROM standing AS s
    LEFT JOIN inherited AS i ON i.incident = s.incident AND i.id = s.id
)
SELECT
    incident,
    failure,
    list_sort(list_distinct(flatten(list(who)))) AS ranks,
    max(strength) AS strength,
    min(at_lo) AS at_lo,
    CASE WHEN bool_and(at_hi IS NOT NULL) THEN min(at_hi) END AS at_hi,
    min(seq) AS seq,
    bool_and(progressed) AS progressed,
    bool_or(issuer = 'kernel') AS by_kernel,
    bool_and(scope = 'launcher') AS by_launcher,
    bool_or(accuses_rank IS NOT NULL) AS accused,
    count(*) AS copies,
    count(*) FILTER (len(who) = 0) AS nameless,
    arg_min(id, (CASE WHEN len(who) = 0 THEN 1 ELSE 0 END, coalesce(seq, 1099511627776), id)) AS first_id,
    arg_min(path, (CASE WHEN len(who) = 0 THEN 1 ELSE 0 END, coalesce(seq, 1099511627776), id)) AS path,
    list(id) AS ids
FROM named
GROUP BY incident, failure;
