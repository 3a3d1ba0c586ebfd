-- How far the lake knows who held what. Grain: one row per cluster. Base: rows of `allocations`.
SELECT coalesce(cluster, '') AS cluster, max(greatest(started, coalesce(ended, started))) AS last_known
FROM allocations
GROUP BY coalesce(cluster, '')
