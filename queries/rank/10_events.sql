-- Events: observations that can start, echo or end a failure; each once.
-- Grain: one row per incident and event. The same line seen in a console and in a rank's own file is one event; a copy
-- whose writer is unknown yields to the copy whose writer is known.
CREATE OR REPLACE TEMP TABLE events AS
WITH subjects AS (
    SELECT
        o.*,
        coalesce(o.accuses_rank, o.rank) AS subject,
        CASE
            WHEN len(o.joint_ranks) > 0 THEN o.joint_ranks
            WHEN coalesce(o.accuses_rank, o.rank) IS NULL THEN []
            ELSE [coalesce(o.accuses_rank, o.rank)]
        END AS subject_ranks
    FROM observations AS o
    WHERE o.role IN ('initiating', 'cascade', 'teardown', 'confirmation')
),
numbered AS (
    SELECT
        s.*,
        row_number() OVER (
            PARTITION BY s.incident, s.role, s.signature, s.detector, s.subject_ranks, coalesce(s.same, s.text)
            ORDER BY s.seq NULLS LAST, s.id
        ) AS copy
    FROM subjects AS s
)
SELECT n.*
FROM numbered AS n
WHERE n.copy = 1
  AND NOT (
      n.subject IS NULL AND n.scope = 'rank' AND n.same IS NOT NULL AND EXISTS (
          SELECT 1 FROM subjects AS known
          WHERE known.incident = n.incident AND known.same = n.same AND known.subject IS NOT NULL
      )
  );
