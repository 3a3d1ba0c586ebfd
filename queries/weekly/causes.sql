-- What failed, by cause class, ranked by the GPU-hours it cost.
-- Grain: one row per cause. Base: failed runs that ended in the period.
SELECT
    cause,
    sum(CASE WHEN period = 0 THEN 1 ELSE 0 END) AS failures,
    sum(CASE WHEN period = -1 THEN 1 ELSE 0 END) AS failures_before,
    sum(CASE WHEN period = 0 THEN lost_gpu_hours END) AS lost_gpu_hours,
    sum(CASE WHEN period = 0 THEN wait_gpu_hours END) AS wait_gpu_hours,
    sum(CASE WHEN period = 0 THEN run_gpu_hours END) AS run_gpu_hours,
    sum(CASE WHEN period = 0 AND lost_gpu_hours IS NULL THEN 1 ELSE 0 END) AS unpriced
FROM (SELECT CASE WHEN determined THEN cause ELSE 'undetermined' END AS cause, period, lost_gpu_hours,
        wait_gpu_hours, run_gpu_hours
    FROM failed_runs WHERE period IN (-1, 0)) f
GROUP BY cause
HAVING sum(CASE WHEN period = 0 THEN 1 ELSE 0 END) > 0
ORDER BY lost_gpu_hours DESC NULLS LAST, failures DESC, cause
