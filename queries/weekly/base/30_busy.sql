-- Busy time of nodes: overlapping allocations of one node merged, so that a shared node counts once.
-- Grain: one row per cluster, node and uninterrupted busy interval.
WITH starts AS (
    SELECT
        h.*,
        CASE WHEN h.started <= max(h.held_until) OVER (
            PARTITION BY h.cluster, h.node ORDER BY h.started, h.held_until, h.job
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) THEN 0 ELSE 1 END AS is_new
    FROM holdings h
),
numbered AS (
    SELECT s.*, sum(s.is_new) OVER (
        PARTITION BY s.cluster, s.node ORDER BY s.started, s.held_until, s.job
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS island
    FROM starts s
)
SELECT cluster, node, min(started) AS started, max(held_until) AS held_until
FROM numbered
GROUP BY cluster, node, island
