-- What the measured failure rate means for large jobs: input of the projection, which is a formula and not a measurement.
-- Grain: one row. Base: infrastructure failures and node-days of all runs with exposure, all periods of the report.
WITH span AS (SELECT min(starts) AS starts, max(ends) AS ends FROM periods),
gaps AS (
    SELECT incident, date_diff('microsecond',
            lag(saved_at) OVER (PARTITION BY incident ORDER BY saved_at), saved_at) / 6e7 AS gap_minutes
    FROM checkpoints
    WHERE status = 'complete' AND step IS NOT NULL
),
observed AS (
    SELECT g.incident, median(g.gap_minutes) AS gap_minutes
    FROM gaps g
    JOIN failed_runs f ON f.incident = g.incident
    WHERE g.gap_minutes > 0 AND f.period IS NOT NULL
    GROUP BY g.incident
)
SELECT
    (SELECT count(*) FROM failed_runs WHERE infrastructure AND exposed AND period IS NOT NULL) AS k,
    (SELECT count(*) FROM failed_runs WHERE NOT determined AND exposed AND period IS NOT NULL) AS undetermined,
    (SELECT sum(node_hours) / 24 FROM exposure WHERE period IS NOT NULL) AS node_days,
    (SELECT max(gpus) FROM runs) AS largest_gpus,
    (SELECT quantile_cont(gpus * 1.0 / nodes, 0.5) FROM runs WHERE gpus > 0) AS gpus_per_node,
    (SELECT median(gap_minutes) FROM observed) AS interval_minutes,
    (SELECT count(*) FROM observed) AS interval_jobs
