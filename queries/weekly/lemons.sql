-- Nodes and the infrastructure failures they INITIATED, with what speaks for and against them.
-- Grain: one row per node with busy time in the lemon window. Base: node-hours of the window; k counts jobs, not
-- restarts: the failures of one job on one node are one, and only failures with exactly one accused node count, so
-- that hosting the victims of another node never does. Host names are compared without their domain, because scheduler
-- and node spell them differently; an accused node that no allocation holds has null node_hours.
WITH span AS (SELECT lemon_from AS starts, $until AS ends FROM settings),
held AS (
    SELECT e.cluster, e.node, e.node_hours,
        CASE WHEN regexp_matches(e.node, '^[0-9.]+$') THEN e.node ELSE lower(split_part(e.node, '.', 1)) END AS host
    FROM exposure e
    WHERE e.period IS NULL
),
accused AS (
    SELECT f.*, f.nodes[1] AS node, CASE WHEN regexp_matches(f.nodes[1], '^[0-9.]+$') THEN f.nodes[1]
        ELSE lower(split_part(f.nodes[1], '.', 1)) END AS host
    FROM failed_runs f
    JOIN single_node c ON c.cause = f.cause
    CROSS JOIN span s
    WHERE f.determined AND f.exposed AND len(f.nodes) = 1 AND f.counted_at >= s.starts AND f.counted_at < s.ends
),
record AS (
    SELECT
        cluster, host,
        min(node) AS node,
        count(DISTINCT coalesce(job, incident)) AS k,
        count(*) AS failures,
        count(DISTINCT coalesce("user", '')) AS users,
        count(DISTINCT CAST(counted_at AS DATE)) AS days,
        sum(CASE WHEN status = 'suspected' THEN 1 ELSE 0 END) AS suspected,
        sum(CASE WHEN run_nodes = 1 THEN 1 ELSE 0 END) AS single_node_failures,
        sum(lost_gpu_hours) AS lost_gpu_hours,
        array_agg(DISTINCT signature) AS signatures,
        max(counted_at) AS last_at,
        arg_min(incident, by_recency) AS example
    FROM accused
    GROUP BY cluster, host
),
events AS (
    SELECT a.cluster, a.host, count(DISTINCT e.code) AS xids, array_agg(DISTINCT e.code) AS codes
    FROM accused a
    JOIN kernel_events e ON e.incident = a.incident AND e.node = a.node AND e.event = 'xid'
    GROUP BY a.cluster, a.host
),
boards AS (
    SELECT cluster, host, times AS board_times, serial AS board
    FROM (
        SELECT a.cluster, a.host, g.serial, count(DISTINCT a.incident) AS times,
            row_number() OVER (
                PARTITION BY a.cluster, a.host ORDER BY count(DISTINCT a.incident) DESC, g.serial) AS place
        FROM accused a
        JOIN gpus g ON g.incident = a.incident AND g.node = a.node
        WHERE g.serial IS NOT NULL
            AND (coalesce(g.ecc_volatile_uncorrected, 0) > 0 OR g.remap_failure OR g.remap_pending OR g.error IS NOT NULL)
        GROUP BY a.cluster, a.host, g.serial
    ) b
    WHERE place = 1
)
SELECT
    coalesce(h.cluster, r.cluster) AS cluster, coalesce(h.node, r.node) AS node, h.node_hours, coalesce(r.k, 0) AS k, coalesce(r.failures, 0) AS failures, r.users, r.days,
    r.suspected, r.single_node_failures, r.lost_gpu_hours, r.signatures, r.last_at, r.example, coalesce(x.xids, 0) AS xids,
    x.codes, b.board, b.board_times
FROM held h
FULL OUTER JOIN record r ON r.cluster = h.cluster AND r.host = h.host
LEFT JOIN events x ON x.cluster = r.cluster AND x.host = r.host
LEFT JOIN boards b ON b.cluster = r.cluster AND b.host = r.host
ORDER BY k DESC, h.node_hours NULLS LAST, node
