-- Every examined run that ended in one of the periods or in the lemon window, failed or not.
-- Grain: one row per incident; period is null for one that only the lemon window holds. A run belongs to the period in which it ENDED, whole: a job that spans two weeks is
-- counted once, in the later one. Where no end is known the time of the failure, then the verdict's date, stands in.
WITH timed AS (
    SELECT
        v.incident,
        coalesce(i.cluster, '') AS cluster,
        i.job,
        i.name,
        i."user",
        len(i.nodes) AS job_nodes,
        i.world_size,
        i.gpus,
        i.started,
        i.ended,
        v.at_lo AS failed_at,
        coalesce(i.ended, v.at_hi, v.at_lo, CAST(CAST(v.date AS DATE) AS TIMESTAMP WITH TIME ZONE)) AS counted_at,
        coalesce(i.ended, v.at_hi, v.at_lo, CAST(CAST(v.date AS DATE) + 1 AS TIMESTAMP WITH TIME ZONE)) AS over_by,
        v.status,
        v.signature,
        v.cause,
        v.title,
        v.nodes,
        v.resume_from,
        v.resume_step,
        v.ledger_expected,
        v.ledger_collected,
        v.signature_set
    FROM verdicts v
    LEFT JOIN incidents i ON i.incident = v.incident
    WHERE (CAST($cluster AS VARCHAR) IS NULL OR i.cluster = CAST($cluster AS VARCHAR))
)
SELECT t.*, p.period
FROM timed t
LEFT JOIN periods p ON t.counted_at >= p.starts AND t.counted_at < p.ends
WHERE t.counted_at >= (SELECT history_from FROM settings) AND t.counted_at < $until
