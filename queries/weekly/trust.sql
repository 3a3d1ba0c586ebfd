-- How far the page can be trusted: verdicts by status, evidence expected and collected, failed jobs nobody examined.
-- Grain: one row. Base: runs examined in the period; failed runs in the allocations of the period.
SELECT
    (SELECT count(*) FROM examined WHERE period = 0) AS examined,
    (SELECT count(*) FROM examined WHERE period = 0 AND status = 'no_failure') AS no_failure,
    (SELECT count(*) FROM failed_runs WHERE period = 0) AS failures,
    (SELECT count(*) FROM failed_runs WHERE period = 0 AND status = 'established') AS established,
    (SELECT count(*) FROM failed_runs WHERE period = 0 AND status = 'supported') AS supported,
    (SELECT count(*) FROM failed_runs WHERE period = 0 AND status = 'suspected') AS suspected,
    (SELECT count(*) FROM failed_runs WHERE period = 0 AND status = 'undetermined') AS undetermined,
    (SELECT count(*) FROM failed_runs WHERE period = 0
        AND (signature IS NULL OR signature LIKE 'python/uncaught%')) AS unmatched,
    (SELECT count(*) FROM failed_runs WHERE period = 0 AND lost_gpu_hours IS NULL) AS unpriced,
    (SELECT count(*) FROM failed_runs WHERE period = 0 AND loss_from = 'assumed' AND lost_gpu_hours IS NOT NULL)
        AS assumed_loss,
    (SELECT sum(lost_gpu_hours) FROM failed_runs WHERE period = 0) AS lost_gpu_hours,
    (SELECT sum(run_gpu_hours) FROM failed_runs WHERE period = 0) AS run_gpu_hours,
    (SELECT sum(wait_gpu_hours) FROM failed_runs WHERE period = 0) AS wait_gpu_hours,
    (SELECT sum(gpu_hours) FROM exposure WHERE period = 0) AS gpu_hours,
    (SELECT sum(r.gpu_hours) FROM runs r JOIN periods p ON p.period = 0
        AND NOT r.running AND r.held_until >= p.starts AND r.held_until < p.ends) AS ended_gpu_hours,
    (SELECT sum(least(coalesce(ledger_collected, 0), ledger_expected)) FROM examined
        WHERE period = 0 AND ledger_expected > 0) AS collected,
    (SELECT sum(ledger_expected) FROM examined WHERE period = 0 AND ledger_expected > 0) AS expected,
    (SELECT count(*) FROM examined WHERE period = 0 AND ledger_expected > coalesce(ledger_collected, 0)) AS incomplete,
    (SELECT count(DISTINCT signature_set) FROM examined WHERE period = 0) AS signature_sets,
    (SELECT count(*) FROM runs r JOIN periods p ON p.period = 0
        AND NOT r.running AND r.held_until >= p.starts AND r.held_until < p.ends
        JOIN failed_states s ON s.state = upper(r.state)) AS failed_runs,
    (SELECT count(*) FROM runs r JOIN periods p ON p.period = 0
        AND NOT r.running AND r.held_until >= p.starts AND r.held_until < p.ends
        JOIN failed_states s ON s.state = upper(r.state)
        LEFT JOIN (SELECT DISTINCT cluster, job FROM examined) e ON e.cluster = r.cluster AND e.job = r.job
        WHERE e.job IS NULL) AS failed_runs_unexamined,
    (SELECT max(held_until) FROM runs) AS exposure_until,
    (SELECT count(*) FROM runs) AS runs,
    (SELECT count(*) FROM failed_runs WHERE period = 0 AND NOT exposed) AS without_exposure
