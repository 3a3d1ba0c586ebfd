-- Nodes whose collector brought nothing in the period although jobs failed on them.
-- Grain: one row per node. Base: nodes with ledger rows for runs examined in the period.
SELECT
    l.node,
    count(DISTINCT l.incident) AS incidents,
    count(*) AS looked,
    array_agg(DISTINCT l.outcome) AS outcomes,
    max(l.detail) AS detail
FROM ledger l
JOIN examined e ON e.incident = l.incident
WHERE e.period = 0 AND l.node IS NOT NULL AND l.outcome <> 'not_configured'
GROUP BY l.node
HAVING sum(CASE WHEN l.outcome IN ('collected', 'empty', 'truncated') THEN 1 ELSE 0 END) = 0
ORDER BY incidents DESC, l.node
