-- Effective training time of logical runs: all runs of one job that held GPUs in the period.
-- Grain: one row per job. Base: jobs that ran at least one hour in the period and failed in it. Wall time is from the first start
-- to the last end inside the period: the wait between requeues is in it, the wait before the first start is not.
-- lost_hours: work since the last complete checkpoint, wait and restart of its failures, user code left out (Meta RSC).
WITH job AS (
    SELECT
        r.cluster, r.job,
        max(r."user") AS "user",
        max(r.gpus) AS gpus,
        count(*) AS runs,
        sum(date_diff('microsecond', greatest(r.started, p.starts), least(r.held_until, p.ends)) / 3.6e9) AS held_hours,
        date_diff('microsecond', greatest(min(r.started), min(p.starts)), least(max(r.held_until), max(p.ends))) / 3.6e9
            AS wall_hours
    FROM runs r
    JOIN periods p ON p.period = 0 AND r.started < p.ends AND r.held_until > p.starts
    GROUP BY r.cluster, r.job
),
lost AS (
    SELECT cluster, job, count(*) AS failures,
        sum(CASE WHEN cause IN ('user_code', 'data') AND determined THEN 0
            ELSE lost_gpu_hours / nullif(gpus, 0) END) AS lost_hours,
        sum(CASE WHEN loss_from = 'assumed' THEN 1 ELSE 0 END) AS assumed
    FROM failed_runs
    WHERE period = 0 AND exposed
    GROUP BY cluster, job
)
SELECT
    j.cluster, j.job, j."user", j.gpus, j.runs, l.failures, l.assumed, j.wall_hours, j.held_hours,
    least(coalesce(l.lost_hours, 0), j.held_hours) AS lost_hours,
    greatest(0, j.held_hours - coalesce(l.lost_hours, 0)) / j.wall_hours AS ettr,
    j.gpus * j.wall_hours AS wall_gpu_hours
FROM job j
JOIN lost l ON l.cluster = j.cluster AND l.job = j.job
WHERE j.held_hours >= 1
ORDER BY least(coalesce(l.lost_hours, 0), j.held_hours) * j.gpus DESC, j.job
