-- Intervals have their ends in order.
-- Rows returned are broken.
SELECT v.incident, 'verdicts' AS stated_by, v.at_lo, v.at_hi FROM verdicts AS v WHERE v.at_hi < v.at_lo
UNION ALL
SELECT o.incident, 'observations', o.at_lo, o.at_hi FROM observations AS o WHERE o.at_hi < o.at_lo
UNION ALL
SELECT i.incident, 'incidents', i.started, i.ended FROM incidents AS i WHERE i.ended < i.started
UNION ALL
SELECT a.job, 'allocations', a.started, a.ended FROM allocations AS a WHERE a.ended < a.started;
