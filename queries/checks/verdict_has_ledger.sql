-- A verdict rests on a ledger: somebody looked somewhere.
-- Rows returned are broken.
SELECT v.incident
FROM verdicts AS v
WHERE NOT EXISTS (SELECT 1 FROM ledger AS l WHERE l.incident = v.incident);
