-- Candidates are numbered 1, 2, 3 and their scores do not rise.
-- Rows returned are broken.
WITH placed AS (
    SELECT
        c.incident,
        c.place,
        c.score,
        row_number() OVER (PARTITION BY c.incident ORDER BY c.place) AS nth,
        lag(c.score) OVER (PARTITION BY c.incident ORDER BY c.place) AS before
    FROM candidates AS c
)
SELECT p.incident, p.place, p.score, p.before
FROM placed AS p
WHERE p.place <> p.nth OR p.score > p.before;
