-- One row per synthetic incident, from which all tables follow. Skewed sizes, a few lemon nodes, fifteen signatures.
CREATE OR REPLACE TABLE incident AS
WITH drawn AS (
    SELECT
        i,
        hash(i * 7 + 1) AS h1, hash(i * 7 + 2) AS h2, hash(i * 7 + 3) AS h3, hash(i * 7 + 4) AS h4,
        CAST(floor(i * 1.0 * getvariable('days') * 86400 / getvariable('n')) AS BIGINT) AS into_span
    FROM range(getvariable('n')) t(i)
),
shaped AS (
    SELECT
        *,
        getvariable('until') - to_days(getvariable('days')) + to_seconds(into_span) AS ended,
        [1, 1, 1, 2, 4, 8, 16, 64][CAST(1 + h1 % 8 AS BIGINT)] AS nodes,
        1 + h2 % 48 AS hours,
        h3 % 100 AS kind
    FROM drawn
)
SELECT
    'slurm-synth-' || i || '-0' AS incident,
    CAST(i // 2 AS VARCHAR) AS job,
    'user' || (h4 % 200) AS "user",
    nodes,
    ended,
    CAST(CAST(ended AS DATE) AS VARCHAR) AS date,
    ended - to_hours(CAST(hours AS BIGINT)) AS started,
    ended - to_minutes(CAST(h2 % 30 AS BIGINT)) AS failed,
    kind,
    CASE WHEN kind < 8 THEN 'undetermined' WHEN kind < 60 THEN 'established' WHEN kind < 85 THEN 'supported'
        ELSE 'suspected' END AS status,
    CASE WHEN kind < 8 THEN NULL ELSE 'synthetic/s' || (kind % 15) END AS signature,
    ['gpu', 'node', 'fabric', 'storage', 'user_code', 'user_code', 'data', 'framework'][CAST(1 + kind % 8 AS BIGINT)] AS cause,
    -- one failure in fifty is of one of five lemons, whatever the size of the fleet
    'node-' || CASE WHEN h4 % 50 = 0 THEN h3 % 5 ELSE h4 % getvariable('nodes') END AS culprit
FROM shaped;
