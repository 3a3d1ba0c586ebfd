-- Signatures: which failures come back, when they were first and last seen, and on how many nodes.
-- Grain: one row per signature. Base: verdicts of the period that name one.
SELECT
    f.signature,
    any_value(f.cause) AS cause,
    count(*) AS incidents,
    count(DISTINCT f.job) AS jobs,
    min(f.date) AS first_seen,
    max(f.date) AS last_seen,
    arg_max(f.incident, f.date) AS example
FROM failures AS f
WHERE f.signature IS NOT NULL AND f.status NOT IN ('no_failure', 'undetermined')
  AND f.date >= coalesce(CAST($since AS VARCHAR), '')
  AND f.date < coalesce(CAST($until AS VARCHAR), '9999')
  AND (CAST($cluster AS VARCHAR) IS NULL OR f.cluster = CAST($cluster AS VARCHAR))
GROUP BY f.signature
ORDER BY incidents DESC, f.signature;
