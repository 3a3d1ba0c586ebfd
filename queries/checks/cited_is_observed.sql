-- The cited line is one that a detector saw.
-- Rows returned are broken.
SELECT v.incident, v.signature, v.path, v.line
FROM verdicts AS v
WHERE v.status IN ('established', 'supported', 'suspected')
  AND NOT EXISTS (
      SELECT 1 FROM observations AS o
      WHERE o.incident = v.incident AND o.signature = v.signature
        AND o.path IS NOT DISTINCT FROM v.path AND o.line IS NOT DISTINCT FROM v.line);
