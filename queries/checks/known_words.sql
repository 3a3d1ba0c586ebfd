-- Closed vocabularies are closed: status, cause and scope of verdicts, role of observations, outcome of the ledger.
-- Rows returned are broken.
SELECT v.incident, 'status' AS field, v.status AS value
FROM verdicts AS v
WHERE v.status IS NULL OR v.status NOT IN ('established', 'supported', 'suspected', 'undetermined', 'no_failure')
UNION ALL
SELECT v.incident, 'cause', v.cause
FROM verdicts AS v
WHERE v.cause NOT IN (
    'gpu', 'node', 'fabric', 'storage', 'scheduler', 'framework', 'user_code', 'data', 'host_memory', 'device_memory',
    'environment', 'unknown')
UNION ALL
SELECT v.incident, 'scope', v.scope
FROM verdicts AS v
WHERE v.scope NOT IN ('rank', 'node', 'launcher', 'job')
UNION ALL
SELECT o.incident, 'role', o.role
FROM observations AS o
WHERE o.role NOT IN ('initiating', 'cascade', 'confirmation', 'teardown', 'wrapper', 'context')
UNION ALL
SELECT l.incident, 'outcome', l.outcome
FROM ledger AS l
WHERE l.outcome NOT IN ('collected', 'empty', 'refused', 'timed_out', 'truncated', 'unreachable', 'not_configured');
