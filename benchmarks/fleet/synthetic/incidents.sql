SELECT incident, date, 'slurm' AS scheduler, 'synth' AS cluster, job, "user", 'FAILED' AS state, 1 AS exit_code,
    nodes * 8 AS world_size, [culprit] AS nodes, nodes * 8 AS gpus, 1 AS attempts, started, ended
FROM incident
