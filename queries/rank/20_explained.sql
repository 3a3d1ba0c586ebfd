-- Explanations: an event of role initiating is explained away where an earlier event can have caused it.
-- Grain: one row per (effect, cause) pair. Two events are ordered only when their intervals do not overlap, or when they
-- stand in the same file and were written by the same rank.
CREATE OR REPLACE TEMP TABLE explanations AS
WITH pairs AS (
    SELECT
        c.incident,
        c.id AS effect_id,
        e.id AS cause_id,
        c.signature AS effect_signature, e.signature AS cause_signature,
        c.detector AS effect_detector, e.detector AS cause_detector,
        c.issuer AS effect_issuer, e.issuer AS cause_issuer,
        c.cause AS effect_cause, e.cause AS cause_cause,
        c.scope AS effect_scope, e.scope AS cause_scope,
        c.strength AS effect_strength, e.strength AS cause_strength,
        e.progressed AS cause_progressed,
        coalesce(list_has_any(c.subject_ranks, e.subject_ranks), false) AS same_rank,
        e.subject IS NULL AND len(e.subject_ranks) = 0 AS cause_anywhere,
        (e.node IS NULL OR c.node IS NULL
            OR lower(split_part(e.node, '.', 1)) = lower(split_part(c.node, '.', 1))) AS maybe_same_node,
        coalesce(e.at_hi < c.at_lo, false)
            OR (e.path = c.path AND e.seq < c.seq AND coalesce(e.rank = c.rank, false)) AS before,
        -- a traceback has no time of its own, only that of the line before it: it may be minutes younger (the same ten
        -- minutes within which a kernel event is looked for before a job's first line)
        coalesce(e.at_lo > coalesce(c.at_hi, c.at_lo + 600000000), false) AS strictly_after
    FROM events AS c
    JOIN events AS e ON e.incident = c.incident AND e.id <> c.id
    WHERE c.role = 'initiating' AND e.role = 'initiating'
)
SELECT incident, effect_id, cause_id, 'followed an earlier failure of the same rank' AS how
FROM pairs
WHERE same_rank AND before AND cause_strength >= effect_strength AND NOT cause_progressed
  AND effect_issuer <> 'kernel' AND cause_detector NOT IN ('silence', 'divergence')
UNION ALL
SELECT p.incident, p.effect_id, p.cause_id, 'is a known consequence of it'
FROM pairs AS p
JOIN relations AS r ON r.effect = p.effect_signature AND r.cause = p.cause_signature
WHERE NOT p.strictly_after AND NOT p.cause_progressed AND (p.cause_strength >= 2 OR p.cause_strength >= p.effect_strength)
  AND (p.same_rank OR p.cause_anywhere OR p.cause_scope IN ('node', 'job') OR p.effect_scope IN ('node', 'job'))
  AND (p.before OR p.cause_strength > p.effect_strength OR NOT EXISTS (
      SELECT 1 FROM relations AS back WHERE back.effect = p.cause_signature AND back.cause = p.effect_signature))
UNION ALL
SELECT incident, effect_id, cause_id, 'is the software echo of a kernel or device event'
FROM pairs
WHERE cause_issuer = 'kernel' AND effect_issuer <> 'kernel' AND cause_strength >= 2
  -- a broken link is felt at its other end: on another node than the one whose kernel reports it
  AND (same_rank OR (cause_anywhere AND (maybe_same_node OR (cause_cause = 'fabric' AND effect_cause = 'fabric'))))
  AND NOT strictly_after
  AND (
      (cause_cause = 'host_memory' AND (effect_signature IN ('exit/killed', 'exit/failed-silently', 'silence/rank-stopped')
          OR effect_cause IN ('host_memory', 'unknown') OR effect_signature LIKE 'dataloader/%'))
      OR (cause_cause IN ('gpu', 'fabric', 'node', 'storage') AND effect_cause NOT IN ('user_code', 'data', 'scheduler'))
  )
UNION ALL
SELECT incident, effect_id, cause_id, 'is the exit that followed its own error'
FROM pairs
WHERE effect_detector = 'exits' AND same_rank AND cause_detector NOT IN ('exits', 'silence', 'divergence')
UNION ALL
SELECT incident, effect_id, cause_id, 'is the silence after a rank was killed'
FROM pairs
WHERE effect_detector IN ('silence', 'divergence') AND cause_signature IN ('exit/killed', 'exit/crashed', 'exit/stopped')
  AND cause_strength >= effect_strength
UNION ALL
SELECT incident, effect_id, cause_id, 'says less than what is known of the same rank'
FROM pairs
WHERE same_rank AND (
    (effect_detector IN ('silence', 'divergence') AND cause_detector NOT IN ('silence', 'divergence')
        AND cause_strength >= effect_strength)
    OR (effect_detector = 'silence' AND cause_signature IN ('divergence/unique-line', 'divergence/call-site'))
    OR (effect_signature = 'divergence/fell-behind' AND cause_detector IN ('silence', 'divergence')
        AND cause_signature <> 'divergence/fell-behind')
    OR (effect_detector = 'error_lines' AND cause_detector IN ('exceptions', 'signatures', 'kernel', 'stacks', 'collectives')
        AND NOT cause_progressed)
    OR (effect_signature = 'exit/failed-silently' AND cause_detector = 'error_lines')
    OR (effect_detector IN ('stacks', 'collectives') AND cause_detector IN ('exceptions', 'signatures', 'kernel')
        AND cause_strength >= 2 AND NOT cause_progressed AND effect_scope = 'rank')
    OR (effect_signature = 'divergence/unique-line' AND cause_signature = 'divergence/call-site')
)
UNION ALL
SELECT incident, effect_id, cause_id, 'ended a job that had failed or hung already'
FROM pairs
WHERE effect_cause = 'scheduler' AND effect_scope IN ('launcher', 'job') AND NOT strictly_after
  AND cause_cause <> 'scheduler' AND NOT cause_progressed
  AND (cause_strength >= 2 OR cause_signature = 'silence/hang')
UNION ALL
SELECT incident, effect_id, cause_id, 'is explained by what the stacks or collectives show'
FROM pairs
WHERE effect_detector IN ('silence', 'divergence') AND cause_detector IN ('stacks', 'collectives') AND cause_strength >= 2
UNION ALL
SELECT incident, effect_id, cause_id, 'is how a slow GPU looks to the peers of its rank'
FROM pairs
WHERE cause_signature = 'gpu/clocks-throttled' AND same_rank AND effect_cause = 'unknown' AND effect_scope = 'rank'
  AND effect_detector IN ('collectives', 'stacks', 'silence', 'divergence');
