-- Events per GPU-year by cage, old batch. Grain: one row per cage. A GPU counts, with all its years and events, to the
-- cage of the slot in which it spent most time, as in the study.
WITH stay AS (
    SELECT job, node, sum(date_diff('second', started, held_until)) / 86400.0 / 365 AS years
    FROM holdings
    WHERE cluster = 'old'
    GROUP BY job, node
),
home AS (
    SELECT job, sum(years) AS years, arg_max(node, years) AS node
    FROM stay
    GROUP BY job
),
counted AS (
    SELECT job, count(*) AS events
    FROM failed_runs
    GROUP BY job
)
SELECT 'cage ' || regexp_extract(h.node, 'c[0-9]+-[0-9]+c([0-9])', 1) || ', events per GPU-year' AS name,
    sum(coalesce(c.events, 0)) / sum(h.years) AS value
FROM home h
LEFT JOIN counted c ON c.job = h.job
GROUP BY 1
