-- Verdicts and incidents come in pairs.
-- Rows returned are broken.
SELECT coalesce(v.incident, i.incident) AS incident, v.incident IS NULL AS without_verdict
FROM verdicts AS v
FULL OUTER JOIN incidents AS i ON i.incident = v.incident
WHERE v.incident IS NULL OR i.incident IS NULL;
