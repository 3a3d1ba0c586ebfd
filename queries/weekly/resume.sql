-- Can the failed work go on, and from how far back?
-- Grain: one row per state of the checkpoints. Base: failed runs that ended in the period.
SELECT
    state,
    count(*) AS failures,
    quantile_cont(age_hours, 0.5) AS median_age_hours,
    quantile_cont(age_hours, 0.9) AS high_age_hours,
    sum(work_gpu_hours) AS work_gpu_hours
FROM (
    SELECT
        CASE WHEN f.saved_at IS NOT NULL THEN 'complete checkpoint'
            WHEN f.loss_from = 'no complete checkpoint' THEN 'only partial or corrupt ones'
            ELSE 'no checkpoint seen' END AS state,
        f.work_gpu_hours,
        f.age_hours
    FROM failed_runs f
    WHERE f.period = 0
) s
GROUP BY state
ORDER BY failures DESC, state
