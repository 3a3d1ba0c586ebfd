-- Whose jobs lost the GPU-hours, and by what.
-- Grain: one row per user (as the scheduler names them; may be a pseudonym). Base: failed runs that ended in the period.
SELECT
    coalesce("user", '(unknown)') AS "user",
    count(*) AS failures,
    count(DISTINCT coalesce(job, incident)) AS jobs,
    sum(lost_gpu_hours) AS lost_gpu_hours,
    sum(run_gpu_hours) AS run_gpu_hours,
    sum(CASE WHEN infrastructure THEN 1 ELSE 0 END) AS infrastructure,
    mode(signature) AS usual
FROM failed_runs
WHERE period = 0
GROUP BY coalesce("user", '(unknown)')
ORDER BY lost_gpu_hours DESC NULLS LAST, failures DESC, "user"
