-- Exposure: how long nodes and GPUs were held in each window, successes too; intervals cut at the window's borders.
-- Grain: one row per window (a period, or the lemon window: period is null), cluster and node.
-- Node-hours count a shared node once, GPU-hours add up.
-- In parts by: node
WITH narrow AS (SELECT cluster, node, started, held_until, gpus FROM holdings),
starts AS (
    SELECT
        h.*,
        CASE WHEN h.started <= max(h.held_until) OVER (
            PARTITION BY h.cluster, h.node ORDER BY h.started, h.held_until
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) THEN 0 ELSE 1 END AS is_new
    FROM narrow h
),
numbered AS (
    SELECT s.*, sum(s.is_new) OVER (
        PARTITION BY s.cluster, s.node ORDER BY s.started, s.held_until
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS island
    FROM starts s
),
busy AS (
    SELECT cluster, node, min(started) AS started, max(held_until) AS held_until
    FROM numbered
    GROUP BY cluster, node, island
),
windows AS (
    SELECT period, starts, ends FROM periods
    UNION ALL
    SELECT CAST(NULL AS BIGINT), lemon_from, $until FROM settings
),
node_time AS (
    SELECT w.period, b.cluster, b.node,
        sum(date_diff('microsecond', greatest(b.started, w.starts), least(b.held_until, w.ends)) / 3.6e9) AS node_hours
    FROM busy b
    JOIN windows w ON b.started < w.ends AND b.held_until > w.starts
    GROUP BY w.period, b.cluster, b.node
),
gpu_time AS (
    SELECT w.period, h.cluster, h.node,
        sum(h.gpus * date_diff('microsecond', greatest(h.started, w.starts), least(h.held_until, w.ends)) / 3.6e9)
            AS gpu_hours
    FROM narrow h
    JOIN windows w ON h.started < w.ends AND h.held_until > w.starts
    GROUP BY w.period, h.cluster, h.node
)
SELECT n.period, n.cluster, n.node, n.node_hours, coalesce(g.gpu_hours, 0) AS gpu_hours
FROM node_time n
LEFT JOIN gpu_time g ON g.period IS NOT DISTINCT FROM n.period AND g.cluster = n.cluster AND g.node = n.node
