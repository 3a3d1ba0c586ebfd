-- Kernel and driver events of failed jobs: equal events of one device within the coalescing gap are one.
-- Grain: one row per event kind and code. Base: kernel events collected for failed runs of the period. Only failed jobs
-- are collected, so the share of events that end a job cannot be read from this; preceding counts those that did.
WITH timed AS (
    SELECT k.incident, k.node, coalesce(k.device, '') AS device, k.event, k.code, k.at_lo,
        lag(k.at_lo) OVER (
            PARTITION BY k.incident, k.node, coalesce(k.device, ''), k.event, k.code ORDER BY k.at_lo) AS before
    FROM kernel_events k
    JOIN failed_runs f ON f.incident = k.incident
    WHERE f.period = 0
),
merged AS (
    SELECT t.*
    FROM timed t
    CROSS JOIN settings s
    WHERE t.before IS NULL OR t.at_lo IS NULL
        OR date_diff('microsecond', t.before, t.at_lo) > s.coalesce_seconds * 1e6
)
SELECT
    m.event,
    m.code,
    count(*) AS events,
    count(DISTINCT m.node) AS nodes,
    count(DISTINCT m.incident) AS incidents,
    count(DISTINCT CASE WHEN m.at_lo <= f.ran_until
        AND date_diff('microsecond', m.at_lo, f.ran_until) <= s.event_to_end_seconds * 1e6 THEN m.incident END)
        AS preceding
FROM merged m
JOIN failed_runs f ON f.incident = m.incident
CROSS JOIN settings s
GROUP BY m.event, m.code
ORDER BY incidents DESC, events DESC, m.event, m.code
