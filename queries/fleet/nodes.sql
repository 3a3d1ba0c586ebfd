-- Nodes: which nodes verdicts accuse, beside the failures they merely took part in.
-- Grain: one row per node. A count of accusations is no rate: see `firstfault report weekly` for nodes by exposure.
WITH base AS (
    SELECT *
    FROM failures AS f
    WHERE f.status NOT IN ('no_failure')
      AND f.date >= coalesce(CAST($since AS VARCHAR), '')
      AND f.date < coalesce(CAST($until AS VARCHAR), '9999')
      AND (CAST($cluster AS VARCHAR) IS NULL OR f.cluster = CAST($cluster AS VARCHAR))
),
present AS (
    SELECT b.incident, unnest(b.job_nodes) AS node FROM base AS b
),
accused AS (
    SELECT b.incident, b.cause, unnest(b.nodes) AS node
    FROM base AS b
    WHERE b.status IN ('established', 'supported') AND b.scope IN ('rank', 'node')
),
blamed AS (
    SELECT
        a.node,
        count(*) AS accused,
        count(*) FILTER (WHERE a.cause IN ('gpu', 'node', 'fabric', 'storage', 'host_memory')) AS accused_of_hardware
    FROM accused AS a
    GROUP BY a.node
),
seen AS (
    SELECT p.node, count(*) AS failures FROM present AS p GROUP BY p.node
)
SELECT
    coalesce(b.node, s.node) AS node,
    coalesce(b.accused, 0) AS accused,
    coalesce(b.accused_of_hardware, 0) AS accused_of_hardware,
    s.failures AS failures_present
FROM blamed AS b
FULL OUTER JOIN seen AS s ON s.node = b.node
ORDER BY accused_of_hardware DESC, accused DESC, failures_present DESC, node
LIMIT 200;
