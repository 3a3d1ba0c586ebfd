SELECT incident, date, culprit AS node, failed AS at_lo, failed AS at_hi, 'xid' AS event,
    [79, 48, 63, 74][CAST(1 + kind % 4 AS BIGINT)] AS code, '0000:3b:00' AS device, 'NVRM: Xid' AS text
FROM incident
WHERE cause IN ('gpu', 'fabric')
