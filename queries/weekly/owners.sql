-- Whose jobs lost the GPU-hours, and by what.
-- Grain: one row per user (as the scheduler names them; may be a pseudonym). Base: failed runs that ended in the period.
WITH usual AS (
    SELECT "user", signature
    FROM (
        SELECT "user", signature, row_number() OVER (
            PARTITION BY "user" ORDER BY count(*) DESC, signature) AS place
        FROM failed_runs
        WHERE period = 0 AND signature IS NOT NULL
        GROUP BY "user", signature
    ) c
    WHERE place = 1
)
SELECT
    coalesce(f."user", '(unknown)') AS "user",
    count(*) AS failures,
    count(DISTINCT coalesce(f.job, f.incident)) AS jobs,
    sum(f.lost_gpu_hours) AS lost_gpu_hours,
    sum(f.run_gpu_hours) AS run_gpu_hours,
    sum(CASE WHEN f.infrastructure THEN 1 ELSE 0 END) AS infrastructure,
    max(u.signature) AS usual
FROM failed_runs f
LEFT JOIN usual u ON u."user" IS NOT DISTINCT FROM f."user"
WHERE f.period = 0
GROUP BY coalesce(f."user", '(unknown)')
ORDER BY lost_gpu_hours DESC NULLS LAST, failures DESC, 1
