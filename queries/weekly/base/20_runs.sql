-- Runs: what one job held at one time, its allocations that overlap in time taken together.
-- Grain: one row per cluster, job and run; a requeue of the same job is another run.
-- GPUs are the sum over nodes of the most a node gave at once, so that a replaced pod does not count twice.
-- Most runs hold all their nodes from one moment to another: one span. Only runs of several spans are looked at node by
-- node, because a table of all nodes of all runs would not fit where three years of a large fleet are asked for.
WITH spans AS (
    SELECT
        cluster, job, started, held_until,
        max("user") AS "user",
        max(state) AS state,
        max(CASE WHEN running THEN 1 ELSE 0 END) AS running,
        count(*) AS nodes,
        sum(gpus) AS gpus
    FROM holdings
    GROUP BY cluster, job, started, held_until
),
starts AS (
    SELECT
        s.*,
        CASE WHEN s.started < max(s.held_until) OVER (
            PARTITION BY s.cluster, s.job ORDER BY s.started, s.held_until
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) THEN 0 ELSE 1 END AS is_new
    FROM spans s
),
numbered AS (
    SELECT n.*, count(*) OVER (PARTITION BY n.cluster, n.job, n.run) AS spans
    FROM (
        SELECT t.*, sum(t.is_new) OVER (
            PARTITION BY t.cluster, t.job ORDER BY t.started, t.held_until
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ) AS run
        FROM starts t
    ) n
),
by_node AS (
    SELECT cluster, job, run, count(*) AS nodes, sum(gpus) AS gpus
    FROM (
        SELECT n.cluster, n.job, n.run, h.node, max(h.gpus) AS gpus
        FROM numbered n
        JOIN holdings h ON h.cluster = n.cluster AND h.job = n.job
            AND h.started = n.started AND h.held_until = n.held_until
        WHERE n.spans > 1
        GROUP BY n.cluster, n.job, n.run, h.node
    ) d
    GROUP BY cluster, job, run
)
SELECT
    n.cluster, n.job, n.run,
    max(n."user") AS "user",
    max(n.state) AS state,
    coalesce(max(b.nodes), max(n.nodes)) AS nodes,
    coalesce(max(b.gpus), max(n.gpus)) AS gpus,
    min(n.started) AS started,
    max(n.held_until) AS held_until,
    max(n.running) = 1 AS running,
    sum(n.gpus * date_diff('microsecond', n.started, n.held_until) / 3.6e9) AS gpu_hours,
    sum(n.nodes * date_diff('microsecond', n.started, n.held_until) / 3.6e9) AS node_hours
FROM numbered n
LEFT JOIN by_node b ON b.cluster = n.cluster AND b.job = n.job AND b.run = n.run
GROUP BY n.cluster, n.job, n.run
