SELECT incident, date, 0 AS attempt, culprit AS node, r AS rank, r % 8 AS local_rank, started AS first_line_at,
    failed AS last_line_at, 1000 + r AS lines, 500 AS step
FROM incident, range(getvariable('ranks')) t(r)
