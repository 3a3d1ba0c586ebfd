-- Allocations that touch the reported periods or the lemon window, cleaned.
-- Grain: one row per job, node and start. Base: rows of `allocations` that have a start.
-- An allocation without an end is censored: it counts up to the last moment the lake knows of, never beyond it.
SELECT
    coalesce(a.cluster, '') AS cluster,
    a.job,
    a."user",
    a.state,
    a.node,
    coalesce(a.gpus, 0) AS gpus,
    a.started,
    least(coalesce(a.ended, k.last_known), k.last_known) AS held_until,
    a.ended IS NULL AS running
FROM allocations a
JOIN known k ON k.cluster = coalesce(a.cluster, '')
WHERE a.started IS NOT NULL
    AND a.node IS NOT NULL
    AND a.started < $until
    AND coalesce(a.ended, k.last_known) > a.started
    AND coalesce(a.ended, k.last_known) >= (SELECT history_from FROM settings)
    AND (CAST($cluster AS VARCHAR) IS NULL OR a.cluster = CAST($cluster AS VARCHAR))
