-- Causes: what failed runs died of, and the GPU-hours of those runs where the scheduler told them.
-- Grain: one row per cause class. Base: verdicts of the period that are not no_failure.
SELECT
    f.cause,
    count(*) AS incidents,
    count(*) FILTER (WHERE f.status = 'undetermined') AS undetermined,
    round(sum(f.gpu_hours), 1) AS gpu_hours,
    count(f.gpu_hours) AS incidents_with_gpu_hours
FROM failures AS f
WHERE f.status <> 'no_failure'
  AND f.date >= coalesce(CAST($since AS VARCHAR), '')
  AND f.date < coalesce(CAST($until AS VARCHAR), '9999')
  AND (CAST($cluster AS VARCHAR) IS NULL OR f.cluster = CAST($cluster AS VARCHAR))
GROUP BY f.cause
ORDER BY incidents DESC, f.cause;
