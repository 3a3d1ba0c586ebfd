-- A rank has one row per attempt.
-- Rows returned are broken.
SELECT r.incident, r.attempt, r.rank, count(*) AS copies
FROM ranks AS r
WHERE r.rank IS NOT NULL
GROUP BY r.incident, r.attempt, r.rank
HAVING count(*) > 1;
