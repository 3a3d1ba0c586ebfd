-- An incident has one verdict.
-- Rows returned are broken.
SELECT v.incident, count(*) AS verdicts
FROM verdicts AS v
GROUP BY v.incident
HAVING count(*) > 1;
