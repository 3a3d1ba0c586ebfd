-- Runs: what one job held at one time, its allocations that overlap in time taken together.
-- Grain: one row per cluster, job and run; a requeue of the same job is another run.
-- GPUs are the sum over nodes of the most a node gave at once, so that a replaced pod does not count twice.
WITH starts AS (
    SELECT
        h.*,
        CASE WHEN h.started < max(h.held_until) OVER (
            PARTITION BY h.cluster, h.job ORDER BY h.started, h.held_until, h.node
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) THEN 0 ELSE 1 END AS is_new
    FROM holdings h
),
numbered AS (
    SELECT s.*, sum(s.is_new) OVER (
        PARTITION BY s.cluster, s.job ORDER BY s.started, s.held_until, s.node
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS run
    FROM starts s
),
by_node AS (
    SELECT
        cluster, job, run, node,
        max(gpus) AS gpus,
        max("user") AS "user",
        max(state) AS state,
        min(started) AS started,
        max(held_until) AS held_until,
        max(CASE WHEN running THEN 1 ELSE 0 END) AS running,
        sum(gpus * date_diff('microsecond', started, held_until) / 3.6e9) AS gpu_hours,
        sum(date_diff('microsecond', started, held_until) / 3.6e9) AS node_hours
    FROM numbered
    GROUP BY cluster, job, run, node
)
SELECT
    cluster, job, run,
    max("user") AS "user",
    max(state) AS state,
    count(*) AS nodes,
    sum(gpus) AS gpus,
    min(started) AS started,
    max(held_until) AS held_until,
    max(running) = 1 AS running,
    sum(gpu_hours) AS gpu_hours,
    sum(node_hours) AS node_hours
FROM by_node
GROUP BY cluster, job, run
