-- Failed runs and what they cost, on two bases.
-- Grain: one row per incident whose verdict is not `no_failure`. Base: `examined`.
-- run_gpu_hours    GPUs x whole duration of the failed run, no credit for checkpoints (Acme, Helios).
-- lost_gpu_hours   GPUs x (work since the last complete checkpoint + wait from the first failure to the end of the job
--                  + initialisation after a restart that was seen). Where no checkpoint is known, `assumed_loss_minutes`.
-- GPUs: as the scheduler says, else as allocated, else one per rank; the durations likewise. Null where unknown.
-- Numbers first, texts joined last: a year of a large fleet has to fit in memory.
WITH failed AS (
    SELECT incident, cluster, job, over_by, failed_at, started, ended, counted_at, gpus, world_size
    FROM examined
    WHERE status <> 'no_failure'
),
nearest AS (
    SELECT f.incident, max(r.started) AS started
    FROM failed f
    JOIN runs r ON r.cluster = f.cluster AND r.job = f.job AND r.started <= f.over_by
    GROUP BY f.incident
),
saved AS (
    SELECT
        f.incident,
        sum(CASE WHEN c.status = 'complete' THEN 0 ELSE 1 END) AS broken,
        sum(CASE WHEN c.status = 'complete' THEN 1 ELSE 0 END) AS complete,
        max(CASE WHEN c.status = 'complete' AND c.saved_at <= coalesce(f.ended, c.saved_at) THEN c.saved_at END)
            AS saved_at
    FROM failed f
    JOIN checkpoints c ON c.incident = f.incident
    GROUP BY f.incident
),
sized AS (
    SELECT
        f.incident, f.cluster, f.job, f.failed_at, f.counted_at,
        r.run,
        r.nodes AS held_nodes,
        s.saved_at,
        coalesce(s.broken, 0) > 0 AND coalesce(s.complete, 0) = 0 AS only_broken,
        coalesce(f.gpus, r.gpus, f.world_size) AS all_gpus,
        coalesce(f.started, r.started) AS ran_from,
        coalesce(f.ended, r.held_until, f.counted_at) AS ran_until
    FROM failed f
    LEFT JOIN nearest n ON n.incident = f.incident
    LEFT JOIN runs r ON r.cluster = f.cluster AND r.job = f.job AND r.started = n.started
    LEFT JOIN saved s ON s.incident = f.incident
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
-- clocks of nodes and scheduler differ by seconds: a negative span is none. `greatest` would make one of a null
clipped AS (
    SELECT
        s.*,
        CASE WHEN s.until_failure < 0 THEN 0 ELSE s.until_failure END AS work_hours,
        CASE WHEN s.after_failure < 0 THEN 0 ELSE s.after_failure END AS wait_hours,
        CASE WHEN s.after_saving < 0 THEN 0 ELSE s.after_saving END AS unsaved_hours
    FROM spans s
),
resumed AS (
    SELECT s.incident, count(*) AS later
    FROM spans s
    JOIN runs r ON r.cluster = s.cluster AND r.job = s.job AND r.started >= s.ran_until
    GROUP BY s.incident
),
lost AS (
    SELECT
        s.incident, s.run, s.held_nodes, s.all_gpus, s.ran_from, s.ran_until, s.saved_at, s.counted_at,
        CASE WHEN s.saved_at IS NOT NULL THEN s.unsaved_hours END AS age_hours,
        s.run_hours,
        coalesce(s.wait_hours, 0) AS wait_hours,
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
        CASE WHEN u.later IS NOT NULL THEN t.assumed_restart_minutes / 60.0 ELSE 0 END AS restart_hours
    FROM clipped s
    CROSS JOIN settings t
    LEFT JOIN resumed u ON u.incident = s.incident
),
priced AS (
    SELECT
        l.*,
        -- places without ties, so that an example is the same one whenever the report is made
        row_number() OVER (ORDER BY l.all_gpus * (l.lost_hours + l.wait_hours + l.restart_hours)
            DESC NULLS LAST, l.incident) AS by_cost,
        row_number() OVER (ORDER BY l.counted_at DESC, l.incident) AS by_recency
    FROM lost l
)
SELECT
    e.incident, e.period, e.cluster, e.job, e.name, e."user", e.world_size, e.status, e.signature,
    coalesce(e.cause, 'unknown') AS cause, e.title, e.nodes, e.resume_from, e.resume_step, e.counted_at, e.failed_at,
    l.ran_from, l.ran_until, l.all_gpus AS gpus, l.saved_at, l.loss_from, l.age_hours,
    e.status <> 'undetermined' AS determined,
    l.run IS NOT NULL AS exposed,
    coalesce(l.held_nodes, e.job_nodes) AS run_nodes,
    x.cause IS NOT NULL AND e.status <> 'undetermined' AS infrastructure,
    l.all_gpus * l.run_hours AS run_gpu_hours,
    l.all_gpus * l.lost_hours AS work_gpu_hours,
    l.all_gpus * l.wait_hours AS wait_gpu_hours,
    l.all_gpus * l.restart_hours AS restart_gpu_hours,
    l.all_gpus * (l.lost_hours + l.wait_hours + l.restart_hours) AS lost_gpu_hours,
    l.by_cost,
    l.by_recency
FROM priced l
JOIN examined e ON e.incident = l.incident
LEFT JOIN infrastructure x ON x.cause = e.cause
