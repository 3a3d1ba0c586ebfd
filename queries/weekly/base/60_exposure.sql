-- Exposure: how long nodes and GPUs were held in each period, successes too; intervals cut at the period's borders.
-- Grain: one row per period, cluster and node. Node-hours count a shared node once, GPU-hours add up.
WITH node_time AS (
    SELECT p.period, b.cluster, b.node,
        sum(date_diff('microsecond', greatest(b.started, p.starts), least(b.held_until, p.ends)) / 3.6e9) AS node_hours
    FROM busy b
    JOIN periods p ON b.started < p.ends AND b.held_until > p.starts
    GROUP BY p.period, b.cluster, b.node
),
gpu_time AS (
    SELECT p.period, h.cluster, h.node,
        sum(h.gpus * date_diff('microsecond', greatest(h.started, p.starts), least(h.held_until, p.ends)) / 3.6e9)
            AS gpu_hours
    FROM holdings h
    JOIN periods p ON h.started < p.ends AND h.held_until > p.starts
    GROUP BY p.period, h.cluster, h.node
)
SELECT n.period, n.cluster, n.node, n.node_hours, coalesce(g.gpu_hours, 0) AS gpu_hours
FROM node_time n
LEFT JOIN gpu_time g ON g.period = n.period AND g.cluster = n.cluster AND g.node = n.node
