SELECT incident, date, ['rank_logs', 'kernel_log', 'gpu_state', 'stacks'][CAST(1 + l % 4 AS BIGINT)] AS source,
    ['rank_log', 'kernel_log', 'gpu_state', 'stack_dump'][CAST(1 + l % 4 AS BIGINT)] AS kind, culprit AS node,
    'path' AS path, CASE WHEN (kind + l) % 9 = 0 THEN 'unreachable' ELSE 'collected' END AS outcome,
    1000 AS bytes_seen, 1000 AS bytes_kept
FROM incident, range(12) t(l)
