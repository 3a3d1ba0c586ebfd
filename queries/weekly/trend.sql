-- Failures, cost and failure rate of the reported period and the four before it.
-- Grain: one row per period. Base: failed runs that ended in the period; rates: node-days held in the period.
-- mean_gap_hours is the mean time between distinct moments of failure inside the period, whatever the fleet's size.
SELECT
    p.period,
    p.label,
    p.starts,
    p.ends,
    coalesce(f.failures, 0) AS failures,
    coalesce(f.undetermined, 0) AS undetermined,
    coalesce(f.infrastructure, 0) AS infrastructure,
    coalesce(f.k, 0) AS k,
    coalesce(f.without_exposure, 0) AS without_exposure,
    f.lost_gpu_hours,
    f.run_gpu_hours,
    coalesce(f.moments, 0) AS moments,
    f.mean_gap_hours,
    e.gpu_hours,
    e.node_hours / 24 AS node_days
FROM periods p
LEFT JOIN (
    SELECT
        period,
        count(*) AS failures,
        sum(CASE WHEN determined THEN 0 ELSE 1 END) AS undetermined,
        sum(CASE WHEN infrastructure THEN 1 ELSE 0 END) AS infrastructure,
        sum(CASE WHEN infrastructure AND exposed THEN 1 ELSE 0 END) AS k,
        sum(CASE WHEN exposed THEN 0 ELSE 1 END) AS without_exposure,
        sum(lost_gpu_hours) AS lost_gpu_hours,
        sum(run_gpu_hours) AS run_gpu_hours,
        count(DISTINCT counted_at) AS moments,
        CASE WHEN count(DISTINCT counted_at) > 1
            THEN date_diff('microsecond', min(counted_at), max(counted_at)) / 3.6e9 / (count(DISTINCT counted_at) - 1)
        END AS mean_gap_hours
    FROM failed_runs
    WHERE period IS NOT NULL
    GROUP BY period
) f ON f.period = p.period
LEFT JOIN (
    SELECT period, sum(gpu_hours) AS gpu_hours, sum(node_hours) AS node_hours
    FROM exposure
    WHERE period IS NOT NULL
    GROUP BY period
) e ON e.period = p.period
ORDER BY p.period
