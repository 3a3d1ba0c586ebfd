-- How often the loudest error was an echo, and what waiting after the first failure cost.
-- Grain: one row per cause. Base: determined failures of the period with at least one observation.
-- Loudest: the signature that most observations of the incident carry, first failure and echoes alike.
WITH said AS (
    SELECT o.incident, o.signature, o.role, count(*) AS lines
    FROM observations o
    JOIN failed_runs f ON f.incident = o.incident
    WHERE f.period = 0 AND f.determined AND o.role IN ('initiating', 'cascade')
    GROUP BY o.incident, o.signature, o.role
),
loudest AS (
    SELECT incident, arg_max(role, lines) AS role, arg_max(signature, lines) AS signature
    FROM said
    GROUP BY incident
)
SELECT
    f.cause,
    count(*) AS failures,
    sum(CASE WHEN l.role = 'cascade' THEN 1 ELSE 0 END) AS echoed,
    mode(CASE WHEN l.role = 'cascade' THEN l.signature END) AS usual_echo,
    sum(f.wait_gpu_hours) AS wait_gpu_hours
FROM failed_runs f
JOIN loudest l ON l.incident = f.incident
WHERE f.period = 0
GROUP BY f.cause
ORDER BY wait_gpu_hours DESC NULLS LAST, failures DESC, f.cause
