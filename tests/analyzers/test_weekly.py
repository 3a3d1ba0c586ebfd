"""The fleet report as a whole: what it says first, what it refuses to say, and that every format says the same."""

import itertools
import json
import random
import re
import runpy
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

import analyzers.report
from analyzers import lakehouse
from analyzers.cli import cli
from analyzers.periods import moment
from analyzers.report import panels, values, weekly, weekly_html, weekly_stats, weekly_text
from collector.lake import lake_key, to_parquet, write_raw
from collector.store import open_store

TESTS = Path(__file__).parent.parent
lake = runpy.run_path(str(TESTS / "queries" / "weekly" / "given_lake.py"))["lake"]
CSS = (Path(analyzers.report.__file__).parent / "templates" / "weekly.css").read_text()
START = datetime(2026, 11, 23, tzinfo=UTC)
NOW = datetime(2026, 12, 1, 5, tzinfo=UTC)


def at(hours):
    return START + timedelta(hours=hours)


def fleet(nodes=20, lemon=4, users=("ana", "bo")):
    """`nodes` nodes busy all week with jobs of one day; the first fails `lemon` jobs, two others one each."""
    given = {name: [] for name in ("runs_that_ended", "allocations", "ledger", "observations")}
    for node, day in itertools.product(range(nodes), range(7)):
        job, name = f"{node}-{day}", f"gpu-{node:02}"
        bad = (node == 0 and day < lemon) or (node in (5, 6) and day == 2)
        held = {"cluster": "alps", "job": job, "user": users[day % len(users)], "node": name, "gpus": 8}
        state = "NODE_FAIL" if bad else "COMPLETED"
        given["allocations"].append({**held, "state": state, "started": at(24 * day), "ended": at(24 * day + 23)})
        if bad:
            incident = f"slurm-alps-{job}-0"
            given["runs_that_ended"].append(
                {
                    "incident": incident, "cluster": "alps", "job": job, "user": held["user"], "gpus": 8,
                    "started": at(24 * day), "failed": at(24 * day + 22), "ended": at(24 * day + 23),
                    "status": "established", "cause": "gpu", "signature": "gpu/xid-79", "nodes": [name],
                    "ledger_expected": 4, "ledger_collected": 4, "signature_set": "s",
                }
            )  # fmt: skip
            given["ledger"].append({"incident": incident, "source": "kernel_log", "kind": "kernel_log", "node": name,
                                    "outcome": "collected"})  # fmt: skip
    return given


def report(given, since="2026-W48", until="2026-W49", **options):
    return weekly.build(lake(given), moment(since), moment(until), now=NOW, **options)


def said(given):
    """The report as the text of the page and of the terminal; both must say it."""
    built = report(given)
    return Page(weekly_html.render(built)).text, " ".join(weekly_text.render(built).split())


class Page(HTMLParser):
    """Elements and texts of a page; checks that every element is closed in order."""

    VOID = ("meta", "wbr", "br", "link")

    def __init__(self, source):
        super().__init__()
        self.elements, self.open, self.errors, self.texts = [], [], [], []
        self.feed(source)
        self.close()
        self.errors += self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.errors.append(tag)

    def handle_data(self, data):
        if "style" not in self.open:
            self.texts.append(data)

    @property
    def text(self):
        return " ".join("".join(self.texts).split())


@pytest.fixture(scope="module")
def usual():
    return report(fleet(), cluster="alps", store="s3://bucket/lake")


# --- what it says


def test_the_first_screen_answers_what_to_fix(usual):
    page = Page(weekly_html.render(usual)).text
    first = page[: page.index("What it cost and what to fix")]
    assert "6 runs failed and lost 72 GPU-hours, 0.3% of the 25,760 held" in first
    assert "Xid 79" in first and "Drain" in first and "100% of the loss" in first
    assert re.search("Nodes to take out and test ?gpu-00 ?of 20 nodes", first) and "of 6 examined" in first


def test_costs_stand_on_both_bases_with_their_denominators(usual):
    """6 runs x 8 GPUs: half an hour assumed lost and an hour of waiting each, 23 hours in whole."""
    s = usual["summary"]
    assert s["lost_gpu_hours"] == pytest.approx(6 * 8 * 1.5)
    assert s["run_gpu_hours"] == pytest.approx(6 * 8 * 23)
    assert s["gpu_hours"] == s["ended_gpu_hours"] == pytest.approx(20 * 7 * 8 * 23)
    (row,) = usual["panels"]["causes"]["rows"]
    assert (row["cause"], row["failures"], row["lost_gpu_hours"]) == ("gpu", 6, pytest.approx(72))
    columns = {c["name"]: c for c in usual["panels"]["causes"]["columns"]}
    assert columns["lost_gpu_hours"]["of_value"] == pytest.approx(72)
    assert columns["failures"]["of_value"] == 6


def test_the_rate_has_k_exposure_and_interval(usual):
    now = usual["panels"]["trend"]["rows"][-1]
    days = 20 * 7 * 23 / 24
    assert (now["k"], now["node_days"]) == (6, pytest.approx(days))
    assert now["rate"] == pytest.approx(6000 / days)
    assert now["rate_lo"] < now["rate"] < now["rate_hi"]


def test_fewer_than_five_failures_have_an_interval_but_no_point():
    built = report(fleet(lemon=2))
    now = built["panels"]["trend"]["rows"][-1]
    assert now["k"] == 4 and now["rate"] is None and now["rate_hi"] > now["rate_lo"] > 0
    assert now["interval"].endswith("(k < 5)")
    assert built["panels"]["expected"]["rows"] == []
    assert all(row["mttf"] is None for row in built["panels"]["mttf"]["rows"])


def test_the_lemon_is_named_and_nodes_within_chance_are_not(usual):
    rows = {row["node"]: row for row in usual["panels"]["lemons"]["rows"]}
    assert rows["gpu-00"]["finding"] == "lemon" and rows["gpu-00"]["q"] < 0.05
    assert {rows[n]["finding"] for n in ("gpu-05", "gpu-06")} == {"within chance"}
    for text in (Page(weekly_html.render(usual)).text, weekly_text.render(usual)):
        assert "gpu-00" in text and "gpu-05" not in text
        assert "2 further nodes" in text


def test_one_failure_never_makes_a_lemon():
    given = fleet(nodes=200, lemon=1)
    given["runs_that_ended"] = given["runs_that_ended"][:1]
    assert report(given)["summary"]["lemons"] == []


def test_failures_in_proportion_to_exposure_make_no_lemon():
    """Every node fails once: the one that was asked most about is not different from the others."""
    given = fleet(nodes=12, lemon=0)
    template = fleet(nodes=1, lemon=1)["runs_that_ended"][0]
    given["runs_that_ended"] = [
        {**template, "incident": f"i{n}", "job": f"{n}-3", "nodes": [f"gpu-{n:02}"], "started": at(72), "ended": at(95)}
        for n in range(12)
    ]
    built = report(given)
    assert built["summary"]["lemons"] == [] and not any(r["shown"] for r in built["panels"]["lemons"]["rows"])
    assert "none" in Page(weekly_html.render(built)).text


def _judged(draw, nodes=150, failures=60, worse=1.0):
    """Names of lemons in a fleet whose failures fall on nodes at random; node 0 fails `worse` times as often."""
    hours = [300.0, *(draw.choice((50.0, 300.0, 600.0)) for _ in range(nodes - 1))]
    weights = [h * (worse if n == 0 else 1) for n, h in enumerate(hours)]
    fell = draw.choices(range(nodes), weights, k=failures)
    rows = [
        {"node": n, "node_hours": hours[n], "k": fell.count(n), "failures": fell.count(n), "users": 2, "days": 2,
         "suspected": 0, "single_node_failures": 0, "signatures": [], "xids": 0, "codes": [], "board": None,
         "board_times": None} for n in range(nodes)
    ]  # fmt: skip
    context = weekly_stats.Context({})
    weekly_stats.finish("lemons", rows, context)
    return context.summary["lemons"]


def test_fleets_without_a_lemon_hardly_ever_name_one():
    """The promise of a 5% false-discovery rate, kept over 200 fleets; the draws are fixed."""
    draw = random.Random(7)
    assert sum(bool(_judged(draw)) for _ in range(200)) <= 10


def test_a_node_that_fails_thirty_times_as_often_is_found():
    draw = random.Random(8)
    found = [_judged(draw, worse=30.0) for _ in range(100)]
    assert sum(0 in names for names in found) >= 95
    assert sum(len(set(names) - {0}) for names in found) <= 10


def test_what_speaks_against_a_node_is_said():
    given = fleet(users=("ana",))
    for run in given["runs_that_ended"]:
        run["status"] = "suspected"
    row = report(given)["panels"]["lemons"]["rows"][0]
    assert "one user's jobs only" in row["con"] and "4 of 4 verdicts only suspected" in row["con"]
    assert "no Xid or faulty GPU on record" in row["con"]


def test_projection_says_when_the_closed_form_is_not_valid():
    given = fleet(nodes=20, lemon=7)
    for row in given["allocations"]:
        row["job"] = f"big-{row['job'].partition('-')[2]}"
    for run in given["runs_that_ended"]:
        run["job"] = f"big-{run['job'].partition('-')[2]}"
    rows = report(given)["panels"]["expected"]["rows"]
    assert [row["gpus"] for row in rows] == [8, 16, 32, 64, 128, 256, 512]
    largest = rows[-1]
    assert largest["nodes"] == 64 and largest["mttf"] == pytest.approx(24 / (64 * 9 / (20 * 7 * 23 / 24)))
    assert (largest["ettr"] == "not valid") == (largest["loss"] > 0.25)
    assert largest["ettr_exact"] < largest["ettr_best"] < 1


# --- what it refuses, and says first


def test_without_allocations_there_are_counts_and_no_rates():
    given = fleet()
    given["allocations"] = []
    built = report(given)
    assert built["warnings"][0].startswith("No allocations in the lake")
    assert built["panels"]["causes"]["rows"][0]["failures"] == 6
    for name, spec in panels.specs().items():
        if spec.exposure:
            assert built["panels"][name]["rows"] == [] and built["panels"][name]["refused"]
    for text in said(given):
        assert "without exposure there is no rate" in text and "per 1,000 node-days " not in text.split("Fix first")[0]
        assert "gpu-00" not in text  # a node is not named without exposure


def test_thin_evidence_comes_first():
    given = fleet()
    for run in given["runs_that_ended"]:
        run["ledger_collected"] = 1
    given["allocations"].append({"cluster": "alps", "job": "unseen", "node": "gpu-01", "gpus": 8, "state": "FAILED",
                                 "started": at(1), "ended": at(2)})  # fmt: skip
    built = report(given)
    assert built["warnings"][0].startswith("Thin evidence: 6 of 24 expected pieces (25%)")
    assert built["warnings"][1].startswith("1 of 7 runs that the scheduler calls failed were never examined")
    page, _ = said(given)
    assert page.index("Thin evidence") < page.index("Fix first")


def test_exposure_that_ends_early_is_said():
    given = fleet()
    given["allocations"] = [row for row in given["allocations"] if row["ended"] < at(100)]
    told = report(given)["warnings"]
    assert any(w.startswith("Allocations are known only up to 2026-11-26 23:00 UTC") for w in told)
    assert any("are of jobs that the allocations do not hold" in w for w in told) is False


def test_failures_of_jobs_without_exposure_are_left_out_of_rates_and_said():
    given = fleet()
    given["runs_that_ended"].append({"incident": "x", "gpus": 1, "started": at(1), "ended": at(2),
                                     "status": "supported", "cause": "gpu", "signature_set": "t"})  # fmt: skip
    built = report(given)
    assert built["panels"]["trend"]["rows"][-1]["k"] == 6 and built["summary"]["failures"] == 7
    assert any(w.startswith("1 of 7 failed runs are of jobs") for w in built["warnings"])
    assert any("2 different signature sets" in w for w in built["warnings"])


def test_an_empty_lake_gives_an_honest_page():
    for text in said({}):
        assert "The lake holds nothing of this period" in text
        assert "is the cluster named as in the lake" in text
        assert "0%" not in text and "nan" not in text.lower().split()


def test_a_quiet_week_is_not_an_empty_lake():
    given = fleet(lemon=0)
    given["runs_that_ended"] = [{"incident": "a", "ended": at(1), "status": "no_failure"}]
    for text in said(given):
        assert "No failed run among 1 examined run" in text and "No failed run in this period." in text
    now = report(given)["panels"]["trend"]["rows"][-1]
    assert now["k"] == 0 and now["rate_lo"] == 0 and now["rate_hi"] > 0


def test_another_cluster_is_another_report():
    assert report(fleet(), cluster="other")["nothing"]


# --- the forms it takes


def test_the_page_is_well_formed_and_asks_nothing_of_the_network(usual):
    source = weekly_html.render(usual)
    page = Page(source)
    assert page.errors == []
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {w for _, a in page.elements for w in a.get("aria-labelledby", "").split()} <= set(ids)
    assert not {"script", "link", "img", "iframe", "object", "a", "form"} & {tag for tag, _ in page.elements}
    assert not any({"src", "href", "style"} & attrs.keys() for _, attrs in page.elements)
    assert not re.search(r"url\(|@import|@font-face", CSS)
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels.count(1) == 1 and all(b <= a + 1 for a, b in itertools.pairwise(levels))
    assert all("role" in attrs for tag, attrs in page.elements if tag in ("table", "tr", "td", "th"))


def test_both_colour_schemes_print_and_narrow_screens_are_styled():
    names = re.findall(r"(--[\w-]+):", CSS.partition("@media (prefers-color-scheme: dark)")[0])
    dark = CSS.partition("@media (prefers-color-scheme: dark)")[2].partition("}")[0]
    assert len(names) > 8 and all(f"{name}:" in dark for name in names)
    assert set(re.findall(r"var\((--[\w-]+)\)", CSS)) <= set(names)
    assert "@media print" in CSS and "max-width: 40rem" in CSS


def test_every_panel_shows_its_query_base_and_command(usual):
    page = Page(weekly_html.render(usual)).text
    for name, panel in usual["panels"].items():
        assert " ".join(panel["sql"].split()) in page
        assert panel["base"] in page and "unknown" not in panel["base"]
        assert f"--panel {name} --format csv" in panel["command"]
    assert all(" ".join(query.split()) in page for query in usual["bases"].values())


def test_hostile_names_are_dead_text():
    evil = "<script>alert(1)</script>\x1b[2J\u202e"
    given = fleet()
    for run in given["runs_that_ended"]:
        run.update(user=evil, signature=f"x/{evil}", title=evil, text=evil, nodes=[evil], job=evil)
    for row in given["allocations"]:
        row.update(job=evil, node=evil)
    built = report(given)
    source = weekly_html.render(built)
    assert "<script" not in source and Page(source).errors == []
    assert not re.search("[\x1b\u202e]", source) and not re.search("[\x1b\u202e]", weekly_text.render(built))


def test_json_has_everything_and_nothing_that_is_no_json(usual):
    loaded = json.loads(weekly_text.dumps(usual))
    assert (loaded["schema"], loaded["kind"], loaded["label"]) == (1, "weekly", "2026-W48")
    assert (loaded["since"], loaded["until"]) == ("2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z")
    assert list(loaded["panels"]) == list(panels.specs())
    assert len(loaded["panels"]["lemons"]["rows"]) == 3  # what the page does not name is in the data
    json.loads(weekly_text.dumps(report({})))


def test_the_same_lake_gives_the_same_report():
    given = fleet()
    assert weekly_text.dumps(report(given)) == weekly_text.dumps(report(given))


@pytest.mark.parametrize("width", [60, 100, 160])
def test_text_keeps_to_its_width(usual, width):
    lines = weekly_text.render(usual, width=width).splitlines()
    figures = (
        "Failed runs",
        "GPU-hours lost",
        "Infrastructure failures",
        "Effective",
        "Nodes",
        "Undetermined",
        "Evidence",
    )
    assert not [
        line for line in lines if len(line) > width and not line.startswith((*figures, "JSON, CSV", "firstfault"))
    ]


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, "count", "–"), (0, "count", "0"), (12_345, "count", "12,345"), (0.04, "gpu_hours", "0.04"),
        (1.26, "gpu_hours", "1.3"), (1234.5, "gpu_hours", "1,234"), (0.5, "hours", "30 min"), (0.005, "hours", "18 s"),
        (30.0, "hours", "30.0 h"), (100.0, "hours", "4.2 d"), (0.0421, "share", "4.2%"), (0.0123, "rate", "0.012"),
        (True, "flag", "yes"), (["a", "b"], "list", "a; b"),
        ([3, 3], "change", "3, same"), ([3, 5], "change", "5, ▼ 2"), ([5, 3], "change", "3, ▲ 2"),
        (datetime(2026, 11, 24, 5, 6, tzinfo=UTC), "time", "2026-11-24 05:06"), ("user_code", "cause", "user code"),
    ],
)  # fmt: skip
def test_values(value, kind, text):
    assert values.show(value, kind) == text


# --- published studies, answered by the same queries (counts are facts; see each table's paper)

LLAMA_3 = {
    "gpu": [148, 72, 19, 17, 6, 6], "framework": [54, 2], "fabric": [35], "node": [7, 3, 3, 2, 2, 2, 2],
    "scheduler": [32], "unknown": [7],
}  # fmt: skip
"""Unexpected interruptions by cause, Llama 3 405B, table 5. Its printed percentages do not follow from its counts."""
ACME = {
    "node": [
        (54, 30.25), (21, 15.77), (16, 14.30), (12, 11.00), (12, 4.53), (147, 3.44), (10, 2.12), (6, 0.50), (3, 0.15),
    ],
    "framework": [(6, 4.38), (67, 3.90), (14, 3.28), (65, 1.72), (105, 1.24), (33, 0.16), (5, 0.03), (104, 0), (5, 0)],
    "user_code": [(568, 2.83), (266, 0.28), (620, 0.06), (18, 0.02), (7, 0.01), (111, 0.01), (260, 0.01), (35 + 5, 0)],
}  # fmt: skip
"""(failures, percent of failed GPU time) by reason, Acme, table 3; the last script entry sums those without any."""


def _published(counted):
    """Failed runs of one GPU; `counted`: (cause, signature, failures, hours of all of them together)."""
    runs = []
    for cause, signature, failures, total in counted:
        for n in range(failures):
            runs.append({"incident": f"{signature}-{n}", "job": f"{signature}-{n}", "gpus": 1, "status": "established",
                         "cause": cause, "signature": signature, "ended": at(100),
                         "started": at(100) - timedelta(hours=total / failures)})  # fmt: skip
    return report({"runs_that_ended": runs})


def test_llama_3_shares_follow_from_its_counts():
    built = _published(
        [(cause, f"{cause}/{i}", n, n) for cause, counts in LLAMA_3.items() for i, n in enumerate(counts)]
    )
    assert built["summary"]["failures"] == 419
    by_cause = {row["cause"]: row["failures"] for row in built["panels"]["causes"]["rows"]}
    assert by_cause["gpu"] / 419 == pytest.approx(0.640, abs=5e-4)
    largest = max(built["panels"]["signatures"]["rows"], key=lambda row: row["failures"])
    assert largest["failures"] / 419 == pytest.approx(0.353, abs=5e-4)


def test_acme_ranks_by_gpu_time_not_by_count():
    built = _published(
        [(cause, f"{cause}/{i}", n, pct) for cause, rows in ACME.items() for i, (n, pct) in enumerate(rows)]
    )
    rows = {row["cause"]: row for row in built["panels"]["causes"]["rows"]}
    whole = built["summary"]["run_gpu_hours"]
    assert [rows[c]["failures"] for c in ("node", "framework", "user_code")] == [281, 404, 1890]
    shares = [100 * rows[c]["run_gpu_hours"] / whole for c in ("node", "framework", "user_code")]
    assert shares == pytest.approx([82.06, 14.71, 3.22], abs=0.02)


# --- the command


@pytest.fixture
def stored(tmp_path):
    """The usual fleet as a lake on disk."""
    store = open_store(str(tmp_path / "lake"))
    connection = lake(fleet())
    for table in ("verdicts", "incidents", "ledger"):
        rows = connection.sql(f"SELECT * FROM {table}__files").to_arrow_table().to_pylist()
        for row in rows:
            date = row.pop("date") if table != "verdicts" else row["date"]
            key = lake_key(table, date, row["incident"], f"v{1:017d}-00000000-0000")
            store.put(key, to_parquet(table, [row]))
    rows = connection.sql("SELECT * EXCLUDE (date) FROM allocations__files").to_arrow_table().to_pylist()
    store.put(
        lake_key("allocations", "2026-11-30", "alps-week", f"v{1:017d}-00000000-0000"), to_parquet("allocations", rows)
    )
    return str(tmp_path / "lake")


def run(*arguments):
    return CliRunner().invoke(cli, ["report", *arguments])


def test_command_writes_every_format(stored, tmp_path):
    base = ["weekly", "--store", stored, "--since", "2026-W48", "--cluster", "alps"]
    text = run(*base)
    assert text.exit_code == 0 and "6 runs failed and lost 72 GPU-hours" in text.output
    for name in ("page.html", "data.json"):
        assert run(*base, "-o", str(tmp_path / name)).exit_code == 0
    assert "<h1>6 runs failed" in (tmp_path / "page.html").read_text()
    assert json.loads((tmp_path / "data.json").read_text())["summary"]["failures"] == 6
    table = run(*base, "--panel", "causes", "--format", "csv").output.splitlines()
    assert table[0].startswith("cause,failures,") and table[1].startswith("gpu,6,0,72.0,")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.json", "lake", "page.html"]


def test_command_for_a_month(stored):
    found = json.loads(run("monthly", "--store", stored, "--since", "2026-11", "--format", "json").output)
    assert (found["kind"], found["label"], found["summary"]["failures"]) == ("monthly", "2026-11", 6)
    assert [row["label"] for row in found["panels"]["trend"]["rows"]][:2] == ["2026-07", "2026-08"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--since", "soon"], "'soon' is no time"),
        (["--since", "2026-W48", "--until", "2026-W48"], "the span is empty"),
        (["--panel", "nothing"], "no panel 'nothing'; known: causes, signatures"),
        (["--format", "csv"], "name it with --panel"),
        (["-o", "no/such/folder/x.html"], "cannot write"),
    ],
)
def test_command_says_what_is_wrong(stored, arguments, why):
    found = run("weekly", "--store", stored, *arguments)
    assert found.exit_code == 2 and why in found.output


def test_command_lists_its_panels():
    found = run("weekly", "--list").output
    assert all(name in found for name in panels.specs())


def test_broken_site_signatures_do_not_cost_the_report(monkeypatch):
    from analyzers import signatures

    def broken(extra=None):
        raise signatures.SignatureError("bad")

    monkeypatch.setattr(signatures, "load", broken)
    assert report(fleet())["fix_first"][0]["title"] == "A GPU has fallen off the bus"


def _reported(store, number, lines, cause_node):
    """What collectors write of one job: its header, exposure, log and ledger; times are hours of the week."""
    incident, job = f"slurm-alps-{number}-0", str(number)
    started, ended = at(24 * number), at(24 * number + 5)
    micro = [int(moment_.timestamp()) * 1_000_000 for moment_ in (started, ended)]
    held = {"cluster": "alps", "job": job, "user": "ana", "state": "FAILED", "started": micro[0], "ended": micro[1]}
    write_raw(store, "incidents", incident, "head", [{**held, "incident": incident, "scheduler": "slurm", "gpus": 16,
                                                      "world_size": 2, "nodes": ["n1", "n2"]}])  # fmt: skip
    write_raw(store, "allocations", incident, "head", [{**held, "node": n, "gpus": 8} for n in ("n1", "n2")])
    rows = [
        {"incident": incident, "path": f"rank{rank}.log", "line": number_, "offset": 100 * number_, "part": 0,
         "node": f"n{rank + 1}", "rank": rank, "stream": "stderr", "issuer": "rank", "text": text}
        for rank, texts in enumerate(lines) for number_, text in enumerate(texts, 1)
    ]  # fmt: skip
    write_raw(store, "log_lines", incident, "node-n1", rows)
    ledger = {"incident": incident, "source": "rank_logs", "kind": "rank_log", "outcome": "collected"}
    write_raw(store, "ledger", incident, "node-n1", [{**ledger, "path": f"rank{r}.log", "rank": r} for r in (0, 1)])
    lakehouse.analyze(store, incident)


def test_from_what_collectors_write_to_the_page(tmp_path):
    """Raw parts -> analysis -> lake -> report: the same names and units all the way."""
    store = open_store(str(tmp_path / "lake"))
    died = [
        "step 10 loss 1.5",
        "Traceback (most recent call last):",
        '  File "train.py", line 9, in <module>',
        "    table[key]",
        "KeyError: 'step_7'",
    ]
    for number in (1, 2, 3):
        _reported(store, number, [["step 10 loss 1.5"], died], "n2")
    found = json.loads(
        run("weekly", "--store", str(tmp_path / "lake"), "--since", "2026-W48", "--format", "json").output
    )
    s = found["summary"]
    assert (s["examined"], s["failures"], s["without_exposure"]) == (3, 3, 0)
    assert s["run_gpu_hours"] == pytest.approx(3 * 16 * 5) and s["gpu_hours"] == pytest.approx(3 * 16 * 5)
    (cause,) = found["panels"]["causes"]["rows"]
    assert (cause["cause"], cause["failures"]) == ("user_code", 3)
    assert found["panels"]["unmatched"]["rows"][0]["template"].startswith("KeyError")
    assert found["panels"]["coverage"]["rows"][0]["source"] == "rank_logs"
    assert found["panels"]["lemons"]["rows"] == []  # user code makes no lemon
