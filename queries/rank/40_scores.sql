-- Scores: what speaks for and against each candidate, in numbers and in words.
-- Grain: one row per candidate. Scores compare candidates of one incident only; the weights are the ranking's policy.
CREATE OR REPLACE TEMP TABLE candidates AS
WITH facts AS (
    SELECT
        c.*,
        e.signature, e.cause, e.scope, e.title, e.text, e.line, e.node, e.detector, e.issuer, e.device,
        i.world_size,
        (SELECT count(DISTINCT echo.rank) FROM events AS echo
         WHERE echo.incident = c.incident AND echo.role = 'cascade' AND echo.rank IS NOT NULL
           AND NOT list_contains(c.ranks, echo.rank)) AS echoes,
        (SELECT count(*) FROM events AS ended
         WHERE ended.incident = c.incident AND ended.detector = 'exits' AND ended.role <> 'teardown'
           AND list_has_any(c.ranks, ended.subject_ranks) AND NOT list_contains(c.ids, ended.id)) AS exits,
        (SELECT count(*) FROM explanations AS x
         WHERE x.incident = c.incident AND list_contains(c.ids, x.cause_id)) AS explained,
        (SELECT count(*) FROM candidates_raw AS other
         WHERE other.incident = c.incident AND other.failure <> c.failure) AS rivals,
        (SELECT count(*) FROM candidates_raw AS other
         WHERE other.incident = c.incident AND other.failure <> c.failure
           AND (other.strength >= 2 OR other.strength >= c.strength) AND NOT other.progressed
           AND (c.by_launcher OR NOT other.by_launcher)  -- a launcher's word is never what a rank came too late for
           AND (other.at_hi < c.at_lo
                OR (other.at_lo IS NULL AND c.at_lo IS NULL AND other.seq < c.seq))) AS earlier,
        (SELECT count(*) FROM candidates_raw AS other
         WHERE other.incident = c.incident AND other.failure <> c.failure
           AND other.path = c.path AND other.seq < c.seq) AS printed_before,
        (SELECT count(*) FROM candidates_raw AS other
         WHERE other.incident = c.incident AND other.failure <> c.failure AND (c.by_launcher OR NOT other.by_launcher)
           AND NOT coalesce(c.at_hi < other.at_lo OR (c.at_lo IS NULL AND other.at_lo IS NULL AND c.seq < other.seq), false)
        ) AS not_before
    FROM candidates_raw AS c
    JOIN events AS e ON e.incident = c.incident AND e.id = c.first_id
    JOIN incidents AS i ON i.incident = c.incident
),
flags AS (
    SELECT
        f.*,
        len(f.ranks) AS n_ranks,
        coalesce(f.world_size > 1 AND len(f.ranks) >= f.world_size, false) AS everybody,
        f.scope = 'rank' AND len(f.ranks) = 0 AND coalesce(f.world_size, 1) > 1 AS nobody_named
    FROM facts AS f
)
SELECT
    f.*,
    -- a DOUBLE: literals such as 0.45 are decimals, which JSON and the lake's schema would take for text
    round(CAST(greatest(0.0, least(1.0,
        CASE f.strength WHEN 3 THEN 0.60 WHEN 2 THEN 0.45 ELSE 0.20 END
        + CASE WHEN f.by_kernel THEN 0.12 ELSE 0 END
        + CASE WHEN f.rivals = 0 THEN 0.12 WHEN f.not_before = 0 THEN 0.10 ELSE 0 END
        - CASE WHEN f.earlier > 0 THEN 0.15 WHEN f.printed_before > 0 THEN 0.03 ELSE 0 END
        + CASE WHEN f.echoes > 0 THEN 0.12 ELSE 0 END
        + CASE WHEN f.exits > 0 THEN 0.10 ELSE 0 END
        + CASE WHEN f.explained > 0 THEN 0.04 ELSE 0 END
        + CASE WHEN f.everybody THEN 0.10 ELSE 0 END
        - CASE WHEN f.progressed THEN 0.45 ELSE 0 END
        - CASE WHEN f.nobody_named THEN 0.15 ELSE 0 END
        - CASE WHEN f.scope = 'launcher' AND f.rivals > 0 THEN 0.20 ELSE 0 END
    )) AS DOUBLE), 3) AS score,
    list_concat(
        CASE WHEN f.detector IN ('silence', 'divergence', 'collectives', 'stacks') AND f.strength >= 2
            THEN ['+ it alone differs from its peers in what it did or left undone']
            WHEN f.strength = 3 THEN ['+ the line names the cause by itself'] WHEN f.strength = 2 THEN ['+ the line states a failure of its own, not a reaction']
            ELSE ['- it is a hint, not a statement'] END,
        list_concat(
            CASE WHEN f.by_kernel THEN ['+ the kernel or the device says so'] ELSE [] END,
            list_concat(
                CASE WHEN f.echoes > 0 THEN ['+ it explains the errors of ' || f.echoes || ' other rank(s), which only report a lost or silent peer'] ELSE [] END,
                list_concat(
                    CASE WHEN f.exits > 0 THEN ['+ the process ended by itself, not by the launcher'] ELSE [] END,
                    list_concat(
                        CASE WHEN f.everybody THEN ['+ all ' || f.n_ranks || ' ranks failed in the same way: nobody singled out'] ELSE [] END,
                        list_concat(
                            CASE WHEN f.rivals = 0 THEN ['+ nothing else in the evidence could have started it']
                                 WHEN f.not_before = 0 THEN ['+ it is earlier than every other candidate'] ELSE [] END,
                            list_concat(
                                CASE WHEN f.earlier > 0 THEN ['- another candidate is earlier'] ELSE [] END,
                                list_concat(
                                    CASE WHEN f.progressed THEN ['- the rank went on training after it'] ELSE [] END,
                                    CASE WHEN f.nobody_named THEN ['- the line carries no rank'] ELSE [] END
                                )
                            )
                        )
                    )
                )
            )
        )
    ) AS reasons
FROM flags AS f;
