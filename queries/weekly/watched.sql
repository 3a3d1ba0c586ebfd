-- Failures that owners ask for by name, also when they did not occur.
-- Grain: one row per watched failure. Base: failed runs of the period, undetermined ones that fit it included apart.
SELECT
    w.label,
    count(DISTINCT CASE WHEN f.period = 0 AND f.determined THEN f.incident END) AS failures,
    count(DISTINCT CASE WHEN f.period = 0 AND NOT f.determined THEN f.incident END) AS unproven,
    count(DISTINCT CASE WHEN f.period = -1 THEN f.incident END) AS failures_before,
    sum(CASE WHEN f.period = 0 THEN f.lost_gpu_hours END) AS lost_gpu_hours,
    arg_min(f.incident, f.by_cost) FILTER (WHERE f.period = 0) AS example
FROM watched w
LEFT JOIN failed_runs f ON f.signature = w.signature AND f.period IN (-1, 0)
GROUP BY w.label
ORDER BY failures DESC, w.label
