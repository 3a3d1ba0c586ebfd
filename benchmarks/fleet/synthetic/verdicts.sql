SELECT incident, date, status, signature, cause, 'synthetic failure' AS title, 'rank' AS scope, [0] AS ranks,
    CASE WHEN cause IN ('gpu', 'node', 'fabric', 'storage') THEN [culprit] ELSE CAST([] AS VARCHAR[]) END AS nodes,
    failed AS at_lo, failed AS at_hi, 'why' AS why, 'rank0.log' AS path, 100 AS line,
    'RuntimeError: synthetic failure ' || kind || ' at step ' || length(incident) AS text,
    12 AS ledger_expected, 12 - kind % 3 AS ledger_collected, 'synthetic' AS signature_set, ended AS analyzed_at,
    '0' AS version
FROM incident
