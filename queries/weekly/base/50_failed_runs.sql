-- Failed runs and what they cost, on two bases.
-- Grain: one row per incident whose verdict is not `no_failure`. Base: `examined`.
-- run_gpu_hours    GPUs x whole duration of the failed run, no credit for checkpoints (Acme, Helios).
-- lost_gpu_hours   GPUs x (work since the last complete checkpoint + wait from the first failure to the end of the job
--                  + initialisation after a restart that was seen). Where no checkpoint is known, `assumed_loss_minutes`.
-- GPUs: as the scheduler says, else as allocated, else one per rank; the durations likewise. Null where unknown.
WITH matched AS (
    SELECT e.*, r.run, r.gpus AS held_gpus, r.nodes AS held_nodes, r.started AS held_from, r.held_until,
        row_number() OVER (PARTITION BY e.incident ORDER BY r.started DESC) AS nearest
    FROM examined e
    LEFT JOIN runs r ON r.cluster = e.cluster AND r.job = e.job AND r.started <= e.over_by
    WHERE e.status <> 'no_failure'
),
saved AS (
    SELECT
        m.incident,
        sum(CASE WHEN c.status = 'complete' THEN 0 ELSE 1 END) AS broken,
        sum(CASE WHEN c.status = 'complete' THEN 1 ELSE 0 END) AS complete,
        max(CASE WHEN c.status = 'complete' AND c.saved_at <= coalesce(m.ended, c.saved_at) THEN c.saved_at END)
            AS saved_at
    FROM matched m
    JOIN checkpoints c ON c.incident = m.incident
    WHERE m.nearest = 1
    GROUP BY m.incident
),
sized AS (
    SELECT
        m.*,
        coalesce(s.broken, 0) > 0 AND coalesce(s.complete, 0) = 0 AS only_broken,
        s.saved_at,
        coalesce(m.gpus, m.held_gpus, m.world_size) AS all_gpus,
        coalesce(m.started, m.held_from) AS ran_from,
        coalesce(m.ended, m.held_until, m.counted_at) AS ran_until
    FROM matched m
    LEFT JOIN saved s ON s.incident = m.incident
    WHERE m.nearest = 1
),
spans AS (
    SELECT
        z.*,
        date_diff('microsecond', z.ran_from, greatest(z.ran_from, z.ran_until)) / 3.6e9 AS run_hours,
        date_diff('microsecond', z.ran_from, coalesce(z.failed_at, z.ran_until)) / 3.6e9 AS until_failure,
        date_diff('microsecond', z.failed_at, z.ran_until) / 3.6e9 AS after_failure,
        date_diff('microsecond', z.saved_at, coalesce(z.failed_at, z.ran_until)) / 3.6e9 AS after_saving
    FROM sized z
),
resumed AS (
    SELECT s.incident, count(r.job) AS later
    FROM spans s
    JOIN runs r ON r.cluster = s.cluster AND r.job = s.job AND r.started >= s.ran_until
    GROUP BY s.incident
),
-- clocks of nodes and scheduler differ by seconds: a negative span is none. `greatest` would make one of a null
clipped AS (
    SELECT
        s.*,
        CASE WHEN s.until_failure < 0 THEN 0 ELSE s.until_failure END AS work_hours,
        CASE WHEN s.after_failure < 0 THEN 0 ELSE s.after_failure END AS wait_hours,
        CASE WHEN s.after_saving < 0 THEN 0 ELSE s.after_saving END AS unsaved_hours
    FROM spans s
),
lost AS (
    SELECT
        s.*,
        CASE
            WHEN s.saved_at IS NOT NULL THEN 'checkpoint'
            WHEN s.only_broken THEN 'no complete checkpoint'
            ELSE 'assumed'
        END AS loss_from,
        CASE
            WHEN s.work_hours IS NULL THEN NULL
            WHEN s.saved_at IS NOT NULL THEN least(s.work_hours, s.unsaved_hours)
            WHEN s.only_broken THEN s.work_hours
            ELSE least(s.work_hours, t.assumed_loss_minutes / 60.0)
        END AS lost_hours,
        CASE WHEN coalesce(u.later, 0) > 0 THEN t.assumed_restart_minutes / 60.0 ELSE 0 END AS restart_hours
    FROM clipped s
    CROSS JOIN settings t
    LEFT JOIN resumed u ON u.incident = s.incident
)
SELECT
    l.incident, l.period, l.cluster, l.job, l.name, l."user", l.scheduler, l.world_size, l.status, l.signature,
    coalesce(l.cause, 'unknown') AS cause, l.title, l.scope, l.ranks, l.nodes, l.resume_from, l.resume_step,
    l.counted_at, l.failed_at, l.ran_from, l.ran_until, l.all_gpus AS gpus, l.saved_at, l.loss_from,
    CASE WHEN l.saved_at IS NOT NULL THEN l.unsaved_hours END AS age_hours,
    l.ledger_expected, l.ledger_collected,
    l.status <> 'undetermined' AS determined,
    l.run IS NOT NULL AS exposed,
    coalesce(l.held_nodes, len(i.nodes)) AS run_nodes,
    x.cause IS NOT NULL AND l.status <> 'undetermined' AS infrastructure,
    l.all_gpus * l.run_hours AS run_gpu_hours,
    l.all_gpus * l.lost_hours AS work_gpu_hours,
    l.all_gpus * coalesce(l.wait_hours, 0) AS wait_gpu_hours,
    l.all_gpus * l.restart_hours AS restart_gpu_hours,
    l.all_gpus * (l.lost_hours + coalesce(l.wait_hours, 0) + l.restart_hours) AS lost_gpu_hours,
    -- places without ties, so that an example is the same one whenever the report is made
    row_number() OVER (ORDER BY l.all_gpus * (l.lost_hours + coalesce(l.wait_hours, 0) + l.restart_hours)
        DESC NULLS LAST, l.incident) AS by_cost,
    row_number() OVER (ORDER BY l.counted_at DESC, l.incident) AS by_recency
FROM lost l
LEFT JOIN incidents i ON i.incident = l.incident
LEFT JOIN infrastructure x ON x.cause = l.cause
