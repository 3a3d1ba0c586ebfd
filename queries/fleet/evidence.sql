-- Evidence: what became of each attempt to look, by source and outcome.
-- Grain: one row per source and outcome. Base: ledger rows of incidents of the period.
SELECT
    l.source,
    l.outcome,
    count(*) AS pieces,
    count(DISTINCT l.incident) AS incidents,
    sum(l.bytes_seen) AS bytes_seen,
    sum(l.bytes_kept) AS bytes_kept
FROM ledger AS l
LEFT JOIN incidents AS i ON i.incident = l.incident
WHERE l.date >= coalesce(CAST($since AS VARCHAR), '')
  AND l.date < coalesce(CAST($until AS VARCHAR), '9999')
  AND (CAST($cluster AS VARCHAR) IS NULL OR i.cluster = CAST($cluster AS VARCHAR))
GROUP BY l.source, l.outcome
ORDER BY l.source, pieces DESC;
