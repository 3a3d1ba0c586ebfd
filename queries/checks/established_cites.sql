-- An established verdict cites the line that proves it.
-- Rows returned are broken.
SELECT v.incident, v.status, v.signature
FROM verdicts AS v
WHERE v.status = 'established' AND (v.path IS NULL OR v.text IS NULL OR v.signature IS NULL);
