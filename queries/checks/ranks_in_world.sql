-- Ranks are below the world size, wherever one is stated.
-- Rows returned are broken.
SELECT a.incident, a.rank, i.world_size, 'verdict' AS stated_by
FROM accused_ranks AS a
JOIN incidents AS i ON i.incident = a.incident
WHERE a.rank < 0 OR a.rank >= i.world_size
UNION ALL
SELECT r.incident, r.rank, i.world_size, 'ranks' AS stated_by
FROM ranks AS r
JOIN incidents AS i ON i.incident = r.incident
WHERE r.rank < 0 OR r.rank >= i.world_size;
