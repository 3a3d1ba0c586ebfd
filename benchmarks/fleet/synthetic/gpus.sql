SELECT incident, date, culprit AS node, failed AS taken_at, 0 AS index, 'serial-' || culprit AS serial,
    CASE WHEN kind % 2 = 0 THEN 1 ELSE 0 END AS ecc_volatile_uncorrected
FROM incident
WHERE cause = 'gpu'
