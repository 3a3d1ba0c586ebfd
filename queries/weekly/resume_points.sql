-- Where the dearest failed jobs can go on from.
-- Grain: one row per failed run with a checkpoint, the latest of each job. Base: failed runs that ended in the period.
SELECT job, name, "user", incident, resume_from, resume_step, saved_at, age_hours, gpus, work_gpu_hours
FROM (
    SELECT f.job, f.name, f."user", f.incident, f.resume_from, f.resume_step, f.saved_at, f.gpus, f.work_gpu_hours,
        f.age_hours,
        row_number() OVER (PARTITION BY f.cluster, coalesce(f.job, f.incident) ORDER BY f.counted_at DESC) AS latest
    FROM failed_runs f
    WHERE f.period = 0 AND f.resume_from IS NOT NULL
) r
WHERE latest = 1
ORDER BY work_gpu_hours DESC NULLS LAST, incident
