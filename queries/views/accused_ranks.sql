-- Accused ranks: who a verdict names, one by one, with the node they ran on where that is known.
-- Grain: one row per incident and initiating rank. Verdicts that name no rank have no row.
WITH accused AS (
    SELECT v.incident, v.date, v.status, v.signature, v.cause, unnest(v.ranks) AS rank
    FROM verdicts AS v
)
SELECT
    a.incident,
    a.date,
    a.rank,
    any_value(k.node) AS node,
    any_value(k.device) AS device,
    a.status,
    a.signature,
    a.cause
FROM accused AS a
LEFT JOIN ranks AS k ON k.incident = a.incident AND k.rank = a.rank
GROUP BY a.incident, a.date, a.rank, a.status, a.signature, a.cause;
