-- GPUs by what became of them. Grain: one row per figure. Base: serial numbers in the report's base tables.
WITH by_gpu AS (
    SELECT f.job, count(*) AS events, max(f.cluster) AS cluster, max(CASE WHEN h.job IS NULL THEN 0 ELSE 1 END) AS out
    FROM failed_runs f
    LEFT JOIN (SELECT DISTINCT job FROM holdings WHERE state = 'OUT') h ON h.job = f.job
    GROUP BY f.job
)
SELECT 'GPUs with an event' AS name, count(*) AS value FROM by_gpu
UNION ALL SELECT 'of them taken out', sum(out) FROM by_gpu
UNION ALL SELECT 'with more than one', sum(CASE WHEN events > 1 THEN 1 ELSE 0 END) FROM by_gpu
UNION ALL SELECT 'of the new batch', sum(CASE WHEN cluster = 'new' THEN 1 ELSE 0 END) FROM by_gpu
UNION ALL SELECT 'events', sum(events) FROM by_gpu
UNION ALL SELECT 'slots with an event', count(DISTINCT nodes[1]) FROM failed_runs
