-- Failures that no signature names, clustered by what they say, so that somebody can write the next signature.
-- Grain: one row per template (digits, hexadecimal numbers and quoted words masked). Base: failed runs of the period
-- whose verdict has no signature, or only the general one of an uncaught exception.
SELECT
    template,
    count(*) AS failures,
    count(DISTINCT coalesce("user", '')) AS users,
    sum(lost_gpu_hours) AS lost_gpu_hours,
    arg_min(incident, by_cost) AS example
FROM (
    SELECT f.incident, f."user", f.lost_gpu_hours, f.by_cost,
        substr(regexp_replace(regexp_replace(regexp_replace(coalesce(v.text, f.title, ''),
            '''[^'']*''|"[^"]*"', '<*>', 'g'), '0x[0-9a-fA-F]+', '<*>', 'g'), '[0-9]+', '<*>', 'g'), 1, 160) AS template
    FROM failed_runs f
    JOIN verdicts v ON v.incident = f.incident
    WHERE f.period = 0 AND (f.signature IS NULL OR f.signature LIKE 'python/uncaught%')
) t
GROUP BY template
ORDER BY lost_gpu_hours DESC NULLS LAST, failures DESC, template
