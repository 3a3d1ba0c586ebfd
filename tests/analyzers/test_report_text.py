"""The text report: what it must say, what it must never do, and golden pages to look at.

After a wanted change, rewrite the golden pages: `FIRSTFAULT_UPDATE=1 pytest tests/analyzers/test_report_text.py`.
"""

import copy
import os
import re
import runpy
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.report import plain, text, view, wording

DATA = Path(__file__).parent / "data" / "report"
EXAMPLES = runpy.run_path(str(DATA / "examples.py"))
NAMES = ("exception", "node_lost", "hang", "healthy", "symmetric", "hostile")


@pytest.mark.parametrize("name", NAMES)
def test_golden_page(name):
    page = text.render(EXAMPLES[name]())
    golden = DATA / f"{name}.txt"
    if os.environ.get("FIRSTFAULT_UPDATE"):
        golden.write_text(page, encoding="utf-8")
    assert page == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("verbose", [False, True])
def test_no_line_is_wider_than_asked_except_a_path_alone(name, width, verbose):
    for line in text.render(EXAMPLES[name](), width=width, verbose=verbose).splitlines():
        alone = re.fullmatch(r"\s*\S.*:\d+", line)
        assert plain.cells(line) <= width or alone, line


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("color", [False, True])
def test_nothing_acts_on_the_terminal_but_our_own_colours(name, color):
    page = text.render(EXAMPLES[name](), color=color, verbose=True)
    ours = re.compile(r"\x1b\[(?:[0-9;]+)m")
    assert bool(ours.search(page)) is color
    rest = ours.sub("", page)
    assert {c for c in rest if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") and c != "\n"} == set()
    assert "\u202e" not in rest
    page.encode("utf-8")


def test_colour_changes_no_character():
    diagnosis = EXAMPLES["exception"]()
    coloured = text.render(diagnosis, color=True)
    assert re.sub(r"\x1b\[[0-9;]+m", "", coloured) == text.render(diagnosis)


def test_the_first_line_is_the_verdict_and_the_proof_follows():
    lines = text.render(EXAMPLES["exception"]()).splitlines()
    assert lines[0].startswith("ESTABLISHED: rank 2 on gpu-node-03 failed first: KeyError")
    where = lines.index("  ranks/attempt_0/2/stderr.log:24 (rank 2)")
    assert lines[where + 1] == "    [rank2]: KeyError: 'labels'"
    assert where < 5


def test_echoes_of_one_kind_are_one_line_with_all_ranks():
    page = text.render(EXAMPLES["exception"]())
    assert "ranks 0, 1: Connection closed by peer ← echo of rank 2" in page


def test_a_line_of_an_echo_is_no_proof():
    diagnosis = EXAMPLES["exception"]()
    diagnosis["verdict"]["evidence"].append(diagnosis["collateral"][0]["evidence"])
    page = text.render(diagnosis, verbose=True)
    assert "stderr.log:31" not in page[: page.index("Cause")] and "stderr.log:22" in page[: page.index("Cause")]


def test_the_verdict_is_not_its_own_rival():
    page = text.render(EXAMPLES["exception"]())
    competing = page[page.index("Competing") : page.index("Fix  ")]
    assert "Connection closed by peer" in competing and "KeyError" not in competing
    assert "+ first error in time, by 3.2 s" in page[: page.index("Competing")]


def test_a_suspicion_is_not_told_as_a_fact():
    diagnosis = EXAMPLES["exception"]()
    diagnosis["verdict"]["status"] = "suspected"
    page = text.render(diagnosis)
    assert page.startswith("SUSPECTED: rank 2 on gpu-node-03 possibly failed first")
    assert "check it before acting" in page
    assert "check it before acting" not in text.render(EXAMPLES["exception"]())


def test_undetermined_says_first_what_would_settle_it_and_accuses_nobody():
    page = text.render(EXAMPLES["hang"]())
    assert "failed first" not in page
    order = [page.index(label) for label in ("\nTo settle ", "\nKnown ", "\nPossible ", "\nRuled out ", "\nEvidence ")]
    assert order == sorted(order)
    assert "py-spy dump" in page[order[0] : order[1]]
    assert "a GPU error: kernel logs of both nodes" in page[order[3] : order[4]]
    assert "a GPU error" not in page[order[2] : order[3]]


def test_undetermined_without_missing_still_names_files_and_commands():
    diagnosis = EXAMPLES["hang"]()
    diagnosis["verdict"]["missing"] = []
    assert "py-spy dump --pid PID" in text.render(diagnosis)
    diagnosis["ledger"]["gaps"] = [{"path": "rank3.log", "outcome": "refused", "detail": "permission denied"}]
    settle = text.render(diagnosis)
    assert "To settle  rank3.log: refused, permission denied\n" in settle


def test_no_failure_is_short():
    page = text.render(EXAMPLES["healthy"]())
    assert page.startswith("NO FAILURE: ") and len(page.splitlines()) <= 12
    assert "Fix" not in page and "Resume" not in page


def test_a_partial_checkpoint_is_never_offered_without_a_warning():
    diagnosis = EXAMPLES["exception"]()
    diagnosis["verdict"]["resume_from"]["complete"] = False
    assert "NOT complete" in text.render(diagnosis)
    diagnosis["verdict"]["resume_from"] = None
    assert "none chosen (found: 1 complete, 1 partial)" in text.render(diagnosis)
    diagnosis["details"]["checkpoints"] = diagnosis["details"]["checkpoints"][1:]
    assert "no complete checkpoint found (1 partial)" in text.render(diagnosis)


def test_a_long_line_is_cut_around_what_the_verdict_talks_about():
    page = text.render(EXAMPLES["hostile"]())
    assert "ValueError: could not broadcast shapes" in page
    assert max(map(len, page.splitlines())) < 120


def test_a_runaway_title_does_not_bury_the_page():
    diagnosis = EXAMPLES["exception"]()
    diagnosis["verdict"]["title"] = "tensor(é, " * 20_000
    diagnosis["verdict"]["evidence"][0]["text"] = "é " * 1_000_000
    page = text.render(diagnosis)
    assert page.splitlines().index("") <= 6 and len(page) < 8_000


def test_verbose_leaves_nothing_out():
    diagnosis = EXAMPLES["exception"]()
    diagnosis["ledger"]["gaps"] = [f"rank{r}.log: not there" for r in range(30)]
    assert "… and 27 more" in text.render(diagnosis)
    page = text.render(diagnosis, verbose=True)
    assert "rank29.log" in page and "more" not in page
    assert "Timeline" in page and "01:22:03 rank 0: Connection closed by peer [cascade]" in page


def test_difference_to_the_good_run():
    diagnosis = EXAMPLES["exception"]()
    diagnosis["details"]["first_difference"] = {
        "path": "r2.log", "line": 9, "rank": 2, "text": "skipping record 246", "why": "never printed by the good run",
    }  # fmt: skip
    page = text.render(diagnosis)
    assert (
        "Difference never printed by the good run\n           r2.log:9 (rank 2)\n             skipping record" in page
    )


@pytest.mark.parametrize("name", NAMES)
def test_one_line(name):
    line = text.one_line(EXAMPLES[name]())
    assert len(line) <= 200 and line.isprintable()
    assert line.startswith(EXAMPLES[name]()["verdict"]["status"].replace("_", " ") + ": ")


def test_one_line_has_rank_cause_and_place():
    line = text.one_line(EXAMPLES["exception"]())
    assert "rank 2" in line and "[data]" in line and line.endswith("ranks/attempt_0/2/stderr.log:24")


@pytest.mark.parametrize("empty", [{}, {"verdict": None}, {"verdict": {"status": "established"}}, {"details": []}])
def test_missing_fields_are_no_error(empty):
    assert text.render(empty).strip() and text.one_line(empty)


# --- any field may be missing, null or of another type --------------------------------------------------------------

_ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=30), st.just([]), st.just({}),
    st.just(10**5000), st.lists(st.one_of(st.none(), st.text(max_size=5), st.integers()), max_size=3),
)  # fmt: skip


def _places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _places(item, (*path, key))


_PLACES = {name: [p for p in _places(EXAMPLES[name]()) if p] for name in ("exception", "hang")}


@st.composite
def damaged(draw):
    name = draw(st.sampled_from(sorted(_PLACES)))
    diagnosis = copy.deepcopy(EXAMPLES[name]())
    for path in draw(st.lists(st.sampled_from(_PLACES[name]), min_size=1, max_size=6)):
        node = diagnosis
        try:
            for key in path[:-1]:
                node = node[key]
            node[path[-1]] = draw(_ODD)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier damage removed the place
    return diagnosis


@given(damaged(), st.integers(0, 120), st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_damaged_diagnosis_still_gives_a_page(diagnosis, width, verbose):
    page = text.render(diagnosis, width=width, verbose=verbose)
    page.encode("utf-8")
    assert page.split(":")[0].replace(" ", "_").lower() in ("established", "undetermined")
    assert len(text.one_line(diagnosis)) <= 200


# --- characters and words ---------------------------------------------------------------------------------------------


def test_clean_drops_colours_and_shows_the_rest():
    assert plain.clean("\x1b[1;31mred\x1b[0m") == "red"
    assert plain.clean("a\x1b]0;title\x07b") == "ab"
    assert plain.clean("a\x1b]0;never ended") == "a\\x1b]0;never ended"
    assert plain.clean("a\x00\x07\x9b\u202e\ud800\tb") == "a\\x00\\x07\\x9b\\u202e\\ud800    b"
    assert plain.clean("über 漢字 🏖️\r\nnext") == "über 漢字 🏖️\nnext"


@given(st.text(max_size=200), st.integers(2, 60))
def test_wrapping_keeps_every_word_character_and_the_width(raw, width):
    cleaned = plain.clean(raw)
    lines = plain.wrap(cleaned, width)
    assert all(plain.cells(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(cleaned.split())


def test_wrap_keeps_columns_and_breaks_long_words():
    assert plain.wrap("    indented  twice", 80) == ["    indented  twice"]
    assert plain.wrap("x" * 25, 10) == ["x" * 10, "x" * 10, "x" * 5]
    assert plain.wrap("漢字漢字", 5) == ["漢字", "漢字"]


@given(st.text(min_size=1, max_size=300), st.integers(1, 120), st.text(max_size=40))
def test_shorten_keeps_to_the_room(raw, room, hints):
    short = plain.shorten(raw, room, hints)
    assert len(short) <= room
    assert (short == raw) is (len(raw) <= room) or "…" in raw


def test_shorten_without_hints_keeps_head_and_tail():
    short = plain.shorten("head " + "x" * 500 + " tail", 60)
    assert short.startswith("head ") and short.endswith(" tail") and len(short) == 60


def test_cut_keeps_the_head():
    assert plain.cut("a title of five words", 10) == "a title o…" and plain.cut("short", 10) == "short"


def test_rank_lists():
    assert wording.ranks([]) == ""
    assert wording.ranks([2]) == "rank 2"
    assert wording.ranks([0, 1, 3, 4, 5, 6, 7]) == "ranks 0, 1, 3-7"
    assert wording.ranks([*range(127), 128]) == "ranks 0-126, 128"
    assert wording.ranks(range(8), 8) == "all 8 ranks"
    assert wording.ranks([0, 1], 2) == "both ranks"
    assert wording.ranks(range(0, 1024, 2)).startswith("512 ranks (0, 2, 4, ")


@given(st.sets(st.integers(0, 300), min_size=1))
def test_spans_name_exactly_the_ranks(numbers):
    named = set()
    for part in wording.spans(numbers):
        first, _, last = part.partition("-")
        named |= set(range(int(first), int(last or first) + 1))
    assert named == numbers


def test_a_candidate_of_several_ranks_names_them():
    diagnosis = EXAMPLES["exception"]()
    diagnosis["candidates"][1] |= {"rank": None, "ranks": [0, 1, 3], "node": None}
    assert "Competing  ranks 0, 1, 3: Connection closed by peer" in text.render(diagnosis)


def test_the_status_is_not_said_twice():
    diagnosis = {"verdict": {"status": "no_failure", "title": "No failure: the run ended well"}}
    assert text.render(diagnosis).splitlines()[0] == "NO FAILURE: the run ended well"


def test_subjects():
    def said(**verdict):
        return wording.headline(view.read({"incident": {"world_size": 8}, "verdict": verdict}))

    assert said(status="established", scope="rank", ranks=[2], title="T") == "rank 2 failed first: T"
    assert said(status="established", scope="rank", ranks=[2, 5], title="T") == "ranks 2, 5 failed first together: T"
    assert said(status="supported", scope="node", nodes=["n3"], ranks=[4, 5]) == (
        "node n3 (ranks 4, 5) most likely failed first"
    )
    assert said(status="supported", scope="node", nodes=["n3"], title="Node n3 fell silent") == (
        "most likely: Node n3 fell silent"
    )
    assert said(status="established", scope="rank", ranks=[1], title="Rank 1 was killed") == "Rank 1 was killed"
    assert said(status="established", scope="launcher", nodes=["n0"], title="port in use") == (
        "the launcher on n0 failed first: port in use"
    )
    assert said(status="suspected", scope="rank", title="T") == "a rank that nothing names possibly failed first: T"
    assert said(status="suspected", scope="job", title="T") == "the job as a whole possibly failed: T"
    assert said(status="established", scope="job", ranks=list(range(8)), title="T") == "all 8 ranks failed together: T"
