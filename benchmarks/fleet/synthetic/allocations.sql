SELECT date, job, 'synth' AS cluster, "user", CASE WHEN a = 0 THEN 'FAILED' ELSE 'COMPLETED' END AS state,
    CASE WHEN a = 0 THEN culprit ELSE 'node-' || (hash(job) + a * 7919) % getvariable('nodes') END AS node, 8 AS gpus,
    started, ended
FROM incident, range(10) t(a)
