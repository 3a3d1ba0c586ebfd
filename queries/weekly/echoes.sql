-- How often the loudest error was an echo, and what waiting after the first failure cost.
-- Grain: one row per cause. Base: determined failures of the period with at least one observation.
-- Loudest: the signature that most observations of the incident carry, first failure and echoes
-- alike; of equally many the first failure counts as the loudest.
WITH said AS (
    SELECT o.incident, o.signature, o.role, count(*) AS lines
    FROM observations o
    JOIN failed_runs f ON f.incident = o.incident
    WHERE f.period = 0 AND f.determined AND o.role IN ('initiating', 'cascade')
    GROUP BY o.incident, o.signature, o.role
),
loudest AS (
    SELECT incident, role, signature
    FROM (
        SELECT s.*, row_number() OVER (
            PARTITION BY s.incident ORDER BY s.lines DESC, s.role DESC, s.signature) AS place
        FROM said s
    ) p
    WHERE place = 1
),
usual AS (
    SELECT cause, signature
    FROM (
        SELECT f.cause, l.signature, row_number() OVER (
            PARTITION BY f.cause ORDER BY count(*) DESC, l.signature) AS place
        FROM loudest l
        JOIN failed_runs f ON f.incident = l.incident
        WHERE l.role = 'cascade'
        GROUP BY f.cause, l.signature
    ) c
    WHERE place = 1
)
SELECT
    f.cause,
    count(*) AS failures,
    sum(CASE WHEN l.role = 'cascade' THEN 1 ELSE 0 END) AS echoed,
    max(u.signature) AS usual_echo,
    sum(f.wait_gpu_hours) AS wait_gpu_hours
FROM failed_runs f
JOIN loudest l ON l.incident = f.incident
LEFT JOIN usual u ON u.cause = f.cause
WHERE f.period = 0
GROUP BY f.cause
ORDER BY wait_gpu_hours DESC NULLS LAST, failures DESC, f.cause
