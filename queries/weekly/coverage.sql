-- What the collectors brought home, by source.
-- Grain: one row per source. Base: ledger rows of runs examined in the period; `expected` leaves out what nobody
-- configured.
SELECT
    l.source,
    count(DISTINCT l.incident) AS incidents,
    sum(CASE WHEN l.outcome = 'not_configured' THEN 0 ELSE 1 END) AS expected,
    sum(CASE WHEN l.outcome IN ('collected', 'empty') THEN 1 ELSE 0 END) AS collected,
    sum(CASE WHEN l.outcome = 'truncated' THEN 1 ELSE 0 END) AS truncated,
    sum(CASE WHEN l.outcome IN ('refused', 'timed_out', 'unreachable') THEN 1 ELSE 0 END) AS failed,
    sum(CASE WHEN l.outcome = 'not_configured' THEN 1 ELSE 0 END) AS not_configured,
    count(DISTINCT CASE WHEN l.outcome IN ('refused', 'timed_out', 'unreachable') THEN l.node END) AS nodes_failing
FROM ledger l
JOIN examined e ON e.incident = l.incident
WHERE e.period = 0
GROUP BY l.source
ORDER BY failed DESC, expected DESC, l.source
