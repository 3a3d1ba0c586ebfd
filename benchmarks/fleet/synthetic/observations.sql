SELECT incident, date, o AS id, 'signature_hits' AS detector,
    CASE WHEN o = 0 THEN coalesce(signature, 'torch/watchdog') ELSE 'torch/watchdog' END AS signature,
    CASE WHEN o = 0 THEN 'initiating' ELSE 'cascade' END AS role, cause, 'rank' AS scope, 2 AS strength, o AS rank,
    failed AS at_lo, failed AS at_hi, 'rank0.log' AS path, o AS line, 'a line of the log that says what was seen' AS text
FROM incident, range(12) t(o)
