-- Which failure it was, by signature: how often, what it cost, and whether it is new or growing.
-- Grain: one row per signature of the period. Base: failed runs of the period with a verdict (undetermined ones apart).
-- before_4 ... before_1: failures of the four periods before, oldest first; is_new: none in them.
SELECT
    f.signature,
    max(f.cause) AS cause,
    max(f.title) AS title,
    sum(CASE WHEN f.period = 0 THEN 1 ELSE 0 END) AS failures,
    sum(CASE WHEN f.period = -4 THEN 1 ELSE 0 END) AS before_4,
    sum(CASE WHEN f.period = -3 THEN 1 ELSE 0 END) AS before_3,
    sum(CASE WHEN f.period = -2 THEN 1 ELSE 0 END) AS before_2,
    sum(CASE WHEN f.period = -1 THEN 1 ELSE 0 END) AS before_1,
    sum(CASE WHEN f.period < 0 THEN 1 ELSE 0 END) = 0 AS is_new,
    sum(CASE WHEN f.period = 0 THEN f.lost_gpu_hours END) AS lost_gpu_hours,
    sum(CASE WHEN f.period = 0 THEN f.run_gpu_hours END) AS run_gpu_hours,
    count(DISTINCT CASE WHEN f.period = 0 THEN coalesce(f.job, f.incident) END) AS jobs,
    arg_min(f.incident, f.by_cost) FILTER (WHERE f.period = 0) AS example
FROM failed_runs f
WHERE f.period IS NOT NULL AND f.determined AND f.signature IS NOT NULL
GROUP BY f.signature
HAVING sum(CASE WHEN f.period = 0 THEN 1 ELSE 0 END) > 0
ORDER BY lost_gpu_hours DESC NULLS LAST, failures DESC, f.signature
