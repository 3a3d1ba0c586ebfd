-- Undetermined: runs whose verdict could not be reached, and what was missing of their evidence.
-- Grain: one row per incident.
SELECT
    f.incident,
    f.date,
    f.cluster,
    f.title,
    f.why,
    f.ledger_expected - f.ledger_collected AS silent_ranks,
    count(g.incident) AS gaps,
    any_value(g.detail) AS example_gap
FROM failures AS f
LEFT JOIN gaps AS g ON g.incident = f.incident
WHERE f.status = 'undetermined'
  AND f.date >= coalesce(CAST($since AS VARCHAR), '')
  AND f.date < coalesce(CAST($until AS VARCHAR), '9999')
  AND (CAST($cluster AS VARCHAR) IS NULL OR f.cluster = CAST($cluster AS VARCHAR))
GROUP BY f.incident, f.date, f.cluster, f.title, f.why, f.ledger_expected, f.ledger_collected
ORDER BY f.date DESC, f.incident;
