-- A run without a failure accuses nobody.
-- Rows returned are broken.
SELECT v.incident, v.ranks, v.nodes, v.signature
FROM verdicts AS v
WHERE v.status = 'no_failure' AND (len(v.ranks) > 0 OR v.signature IS NOT NULL);
