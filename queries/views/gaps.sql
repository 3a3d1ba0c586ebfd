-- Gaps: evidence that was expected or looked for and is not there, or not whole.
-- Grain: one row per incident and piece of evidence.
SELECT
    l.incident,
    l.date,
    l.source,
    l.path,
    l.kind,
    l.node,
    l.rank,
    l.outcome,
    l.bytes_seen - l.bytes_kept AS bytes_lost,
    l.detail
FROM ledger AS l
WHERE l.outcome IN ('refused', 'timed_out', 'truncated', 'unreachable');
