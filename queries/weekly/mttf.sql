-- Infrastructure failures by job size, measured over all periods of the report together.
-- Grain: one row per size bin (GPUs of a run) that held nodes. Base: infrastructure failures of runs with exposure;
-- exposure: node-days and run-days of all runs of that size, cut at the window's borders.
WITH span AS (SELECT min(starts) AS starts, max(ends) AS ends FROM periods),
cut AS (
    SELECT r.*, date_diff('microsecond', greatest(r.started, s.starts), least(r.held_until, s.ends)) / 3.6e9 AS hours
    FROM runs r
    JOIN span s ON r.started < s.ends AND r.held_until > s.starts
),
held AS (
    SELECT
        b.lo, b.hi,
        count(*) AS runs,
        sum(c.hours * c.node_hours / (date_diff('microsecond', c.started, c.held_until) / 3.6e9)) / 24 AS node_days,
        sum(c.hours) AS run_hours,
        max(c.nodes) AS nodes
    FROM cut c
    JOIN size_bins b ON c.gpus >= b.lo AND c.gpus < b.hi
    GROUP BY b.lo, b.hi
),
failed AS (
    SELECT b.lo, count(*) AS k
    FROM failed_runs f
    JOIN size_bins b ON f.gpus >= b.lo AND f.gpus < b.hi
    WHERE f.infrastructure AND f.exposed AND f.period IS NOT NULL
    GROUP BY b.lo
)
SELECT h.lo, h.hi, h.runs, h.nodes, h.node_days, h.run_hours, coalesce(f.k, 0) AS k
FROM held h
LEFT JOIN failed f ON f.lo = h.lo
ORDER BY h.lo
