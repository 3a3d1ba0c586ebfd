-- Crash loops: jobs that failed again and again in the same way.
-- Grain: one row per job and signature with at least `crash_loop_failures` failures. Base: failed runs of the period.
SELECT
    f.cluster, f.job,
    max(f.name) AS name,
    max(f."user") AS "user",
    f.signature,
    count(*) AS failures,
    min(f.counted_at) AS first_at,
    max(f.counted_at) AS last_at,
    count(DISTINCT f.nodes) AS places,
    sum(f.lost_gpu_hours) AS lost_gpu_hours,
    arg_min(f.incident, f.by_recency) AS example
FROM failed_runs f
WHERE f.period = 0 AND f.job IS NOT NULL
GROUP BY f.cluster, f.job, f.signature
HAVING count(*) >= (SELECT crash_loop_failures FROM settings)
ORDER BY lost_gpu_hours DESC NULLS LAST, failures DESC, f.job
