"""The HTML report: self-contained, dead to hostile text, accessible, and readable from 2 to 1,024 ranks."""

import copy
import itertools
import re
import runpy
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import analyzers.report
from analyzers.report import html, lanes, view

EXAMPLES = runpy.run_path(str(Path(__file__).parent / "data" / "report" / "examples.py"))
NAMES = ("exception", "node_lost", "hang", "healthy", "symmetric", "hostile")
CSS = (Path(analyzers.report.__file__).parent / "templates" / "diagnosis.css").read_text()
VOID = {"meta", "br", "wbr", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """Elements and texts of a page; checks that every element is closed in order."""

    def __init__(self, source):
        super().__init__()
        self.elements, self.open, self.errors, self.texts, self.declared = [], [], [], [], []
        self.feed(source)
        self.close()
        self.errors += [f"never closed: {tag}" for tag in self.open]

    def handle_decl(self, decl):
        self.declared.append(decl)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "wbr":
            self.texts.append("\0")  # a place to break, not a space
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.errors.append(f"closes in the wrong place: {tag}")

    def handle_data(self, data):
        if "style" not in self.open:
            self.texts.append(data)

    def all(self, *tags):
        return [attrs for tag, attrs in self.elements if tag in tags]

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split()).replace(" \0", "\0").replace("\0 ", "\0").replace("\0", "")


@pytest.fixture(scope="module")
def pages():
    return {name: Page(html.render(EXAMPLES[name]())) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_well_formed(pages, name):
    page = pages[name]
    assert page.declared == ["doctype html"] and page.errors == []
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    named = {word for _, attrs in page.elements for word in attrs.get("aria-labelledby", "").split()}
    assert named <= set(ids)


@pytest.mark.parametrize("name", NAMES)
def test_asks_nothing_of_the_network_and_runs_nothing(pages, name):
    page = pages[name]
    assert not page.all("script", "link", "img", "iframe", "object", "embed", "base", "form", "use", "image")
    for tag, attrs in page.elements:
        assert not {"src", "srcset", "action", "xlink:href", "style"} & attrs.keys()
        assert not any(key.startswith("on") for key in attrs)
        assert tag == "a" or "href" not in attrs
    assert all(re.match("https?://", attrs["href"]) for attrs in page.all("a"))
    assert not re.search(r"url\(|@import|@font-face", CSS)
    policy = next(attrs["content"] for attrs in page.all("meta") if "http-equiv" in attrs)
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'")


def test_hostile_text_is_shown_and_dead(pages):
    page = pages["hostile"]
    assert "<script>alert(1)</script>" in page.text  # as text
    assert [a["href"] for a in page.all("a")] == ["https://example.org/?a=1&b=<i>"]
    source = html.render(EXAMPLES["hostile"]())
    source.encode("utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u2028]", source)
    assert "ValueError: could not broadcast shapes" in page.text and len(source) < 60_000


@pytest.mark.parametrize("name", NAMES)
def test_headings_descend_by_one_and_tables_have_headers(pages, name):
    page = pages[name]
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert page.all("th") or name == "healthy"
    assert all(attrs.get("scope") in ("col", "row") for attrs in page.all("th"))
    # Rows become cards on narrow screens, which drops the table semantics where the roles are not stated.
    assert all("role" in attrs for attrs in page.all("table", "tr", "td", "th"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("exception", ["Established", "Rank 2 on gpu-node-03 failed first", "Echoes, not causes", "ckpt/step_400"]),
        ("node_lost", ["Supported", "Node gpu-node-02 (ranks 4, 5) most likely failed first", "Gaps"]),
        ("hang", ["Undetermined", "What would settle it", "py-spy dump --pid PID", "Ruled out", "What it could be"]),
        ("healthy", ["No failure", "ended with exit code 0"]),
        ("symmetric", ["All 1,024 ranks failed together", "1,021 of 1,024 expected sources collected"]),
    ],
)
def test_says_what_matters(pages, name, said):
    for words in said:
        assert words in pages[name].text


def test_undetermined_and_healthy_accuse_nobody(pages):
    assert "failed first" not in pages["hang"].text.replace("failed first: ", "")
    assert "Fix" not in pages["healthy"].text and "Resume from" not in pages["healthy"].text


def test_the_proving_line_is_marked_and_in_the_order_of_the_file():
    block = html._excerpts(view.read(EXAMPLES["exception"]()).verdict.evidence, "")[0]
    assert [(number, proof, gap) for number, _, proof, gap in block.lines] == [("22", False, False), ("24", True, True)]


def test_a_cap_of_the_ledger_hides_no_gap():
    diagnosis = EXAMPLES["symmetric"]()
    page = Page(html.render(diagnosis))
    for rank in (17, 512, 513):
        assert f"logs/rank{rank:04d}.log unreachable" in page.text
    assert "and 824 more" in page.text


# --- swim lanes -------------------------------------------------------------------------------------------------------


def _diagnosis(world, seconds=4.0):
    ends = [
        {"rank": r, "node": f"n{r // 8}", "state": "initiated" if r == 1 else "echo", "last_step": 3,
         "last_at": "2026-12-01T01:00:00Z", "end": "exit code 1"} for r in range(world)
    ]  # fmt: skip
    late = f"2026-12-01T{1 + int(seconds) // 3600:02d}:{int(seconds) // 60 % 60:02d}:{seconds % 60:06.3f}+00:00"
    events = [
        {"rank": r, "role": "initiating" if r == 1 else "cascade", "signature": "a" if r == 1 else "b", "title": "T",
         "at": "2026-12-01T01:00:00Z" if r == 1 else late} for r in range(world)
    ]  # fmt: skip
    return {"incident": {"world_size": world}, "details": {"ranks": ends, "timeline": events}}


@pytest.mark.parametrize("world", [2, 8, 9, 64, 1024])
def test_lanes_name_every_rank_once_and_stay_few(world):
    chart = lanes.chart(view.read(_diagnosis(world)))
    assert len(chart.lanes) == (world if world <= 8 else 2)
    assert sum(mark.role == "initiating" for lane in chart.lanes for mark in lane.marks) == 1
    if world > 8:
        assert chart.lanes[0].label == "rank 1" and chart.lanes[0].state == "initiated"
        assert chart.lanes[1].marks[0].name == f"T ×{world - 1:,}"


def test_many_different_fates_are_told_coarser():
    diagnosis = _diagnosis(256)
    for row in diagnosis["details"]["ranks"]:
        row["end"] = f"exit code {row['rank']}"
    assert len(lanes.chart(view.read(diagnosis)).lanes) <= 14


@pytest.mark.parametrize(("seconds", "scale"), [(4.0, "linear"), (1800.0, "stretched"), (36000.0, "stretched")])
def test_the_scale_keeps_seconds_and_hours_apart(seconds, scale):
    chart = lanes.chart(view.read(_diagnosis(4, seconds)))
    assert chart.scale == scale and chart.clock == "01:00:00 UTC"
    assert len(chart.ticks) >= 2
    spots = sorted([chart.zero, *(x for x, _ in chart.ticks)])
    assert all(after - before > 50 for before, after in itertools.pairwise(spots))
    late = next(mark.x for lane in chart.lanes for mark in lane.marks if mark.role == "cascade")
    assert late - chart.zero > 400


@pytest.mark.parametrize("name", NAMES)
def test_marks_stay_inside_and_apart(name):
    chart = lanes.chart(view.read(EXAMPLES[name]()))
    assert (chart is None) is (name == "healthy")
    for lane in chart.lanes if chart else ():
        spots = [mark.x for mark in lane.marks]
        assert all(lanes.LEFT <= x <= lanes.RIGHT for x in spots)
        assert all(after - before >= 16.9 for before, after in itertools.pairwise(spots))


def test_events_without_any_time_stand_in_their_order():
    diagnosis = _diagnosis(4)
    for event in diagnosis["details"]["timeline"]:
        event["at"] = None
    for row in diagnosis["details"]["ranks"]:
        row["last_at"] = None
    chart = lanes.chart(view.read(diagnosis))
    spots = [lane.marks[0].x for lane in chart.lanes]
    assert chart.scale == "order" and chart.zero is None and spots == sorted(set(spots))


def test_an_event_without_time_among_timed_ones_has_a_place_of_its_own():
    diagnosis = _diagnosis(4)
    diagnosis["details"]["timeline"][0]["at"] = None
    chart = lanes.chart(view.read(diagnosis))
    timed = [mark.x for lane in chart.lanes[1:] for mark in lane.marks]
    assert chart.untimed == chart.lanes[0].marks[0].x < min(timed)
    assert "no time" in Page(html.render(diagnosis)).text


# --- colours ----------------------------------------------------------------------------------------------------------


def _luminance(color):
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one, other):
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _schemes():
    blocks = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
    assert len(blocks) == 3
    for name, block in zip(("light", "dark", "print"), blocks, strict=True):
        found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6})\b", block))
        yield name, {key: c if len(c) == 7 else "#" + "".join(2 * x for x in c[1:]) for key, c in found.items()}


@pytest.mark.parametrize(("scheme", "colors"), list(_schemes()))
def test_contrast_is_that_of_wcag_aa(scheme, colors):
    for text in ("ink", "faint", "first", "echo", "good", "doubt", "link"):
        for ground in ("page", "card"):
            assert _contrast(colors[text], colors[ground]) >= 4.5, (scheme, text, ground)
    for text, ground in (("first", "first-soft"), ("doubt", "doubt-soft"), ("good", "good-soft"), ("ink", "code"),
                         ("faint", "code"), ("ink", "first-soft"), ("ink", "doubt-soft")):  # fmt: skip
        assert _contrast(colors[text], colors[ground]) >= 4.5, (scheme, text, ground)
    for mark in ("tear", "wrap"):  # graphics need 3
        assert _contrast(colors[mark], colors["card"]) >= 3, (scheme, mark)


# --- any field may be missing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("empty", [{}, {"verdict": None}, {"verdict": {"status": "established"}}, {"details": []}])
def test_missing_fields_are_no_error(empty):
    assert Page(html.render(empty)).errors == []


_ODD = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.just([]), st.just({}))


@st.composite
def damaged(draw):
    diagnosis = copy.deepcopy(EXAMPLES[draw(st.sampled_from(["exception", "node_lost", "hang"]))]())
    for _ in range(draw(st.integers(1, 8))):
        node, key = None, None
        item = diagnosis
        for _ in range(draw(st.integers(1, 6))):
            if not isinstance(item, dict | list) or not item:
                break
            node, key = item, draw(st.sampled_from(sorted(item) if isinstance(item, dict) else range(len(item))))
            item = node[key]
        if node is not None:
            node[key] = draw(_ODD)
    return diagnosis


@given(damaged())
@settings(max_examples=80, deadline=None)
def test_a_damaged_diagnosis_still_gives_a_page(diagnosis):
    source = html.render(diagnosis)
    source.encode("utf-8")
    assert Page(source).errors == []
