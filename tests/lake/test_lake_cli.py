"""The commands on the lake, as a person or a timer calls them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from analyzers.cli import cli
from collector import lake
from collector.collect import collect
from collector.model import Budget, RunRef
from collector.sources.log_dir import LogDir
from collector.store import LocalStore, open_store

CASES = Path(__file__).parent.parent / "cases"
ONE = "slurm-c-1-0"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lake with the raw parts of one incident, named by the configuration file."""
    store = LocalStore(tmp_path / "lake")
    rows = list(lake.expected_rows(ONE, [("node-n1", "n1", None), ("node-n2", "n2", None)]))
    collect(RunRef(incident=ONE), [], Budget(), store, origin="head", extra={"ledger": rows})
    collect(
        RunRef(incident=ONE), [LogDir(CASES / "a01_keyerror_one_rank_4r" / "plain")], Budget(), store, origin="node-n1"
    )
    config = tmp_path / "firstfault.toml"
    config.write_text(f'[store]\nuri = "{store.uri}"\n')
    monkeypatch.setenv("FIRSTFAULT_CONFIG", str(config))
    monkeypatch.delenv("FIRSTFAULT_STORE", raising=False)
    return tmp_path / "lake"


def call(*words: Any, code: int = 0, **more: Any) -> Result:
    result = CliRunner().invoke(cli, [str(word) for word in words], **more)
    assert result.exit_code == code, result.output + result.stderr
    return result


def test_pending_waits_for_expected_origins_then_the_deadline(place: Path) -> None:
    waiting = call("analyze", "--pending")
    assert waiting.stdout == "" and "1 incident(s) wait" in waiting.stderr
    done = call("analyze", "--pending", "--deadline", "0")
    assert done.stdout.startswith(f"{ONE}  established  python/uncaught-exception")
    assert call("analyze", "--pending", "--deadline", "0").stdout == ""


def test_one_incident_as_json(place: Path) -> None:
    row = json.loads(call("analyze", "--incident", ONE, "--json").stdout)
    assert row["incident"] == ONE and row["error"] is None and row["diagnosis"]["verdict"]["ranks"] == [2]


def test_an_incident_that_is_unknown(place: Path) -> None:
    assert "nothing was reported" in call("analyze", "--incident", "slurm-c-404-0", code=1).stdout
    call("incident", "show", "slurm-c-404-0", code=3)


def test_since_analyses_only_what_would_change(place: Path) -> None:
    call("analyze", "--incident", ONE)
    assert call("analyze", "--since", "2026-01-01").stdout == ""
    assert ONE in call("analyze", "--since", "2026-01-01", "--again").stdout


@pytest.mark.parametrize(
    "words",
    [
        ("analyze",), ("analyze", "--pending", "--since", "2026-01-01"), ("analyze", "--since", "yesterday"),
        ("query",), ("query", "causes", "-e", "SELECT 1"), ("query", "none-such"), ("query", "rank/10_events"),
        ("query", "-e", "SELEC"), ("query", "-e", "DROP VIEW verdicts"), ("query", "causes", "--since", "x"),
        ("compact", "--store", "ftp://x"), ("query", "--list", "--store-option", "x"),
    ],
)  # fmt: skip
def test_wrong_use_is_said_in_words(place: Path, words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, list(words))
    assert result.exit_code in (1, 2) and "Error" in result.stderr and "Traceback" not in result.stderr


def test_query_forms(place: Path) -> None:
    call("analyze", "--incident", ONE)
    assert "(1 row)" in call("query", "signatures").stdout
    sql = "SELECT incident, ranks, at_lo, resume_from FROM verdicts"
    assert json.loads(call("query", "-e", sql, "--json").stdout) == {
        "incident": ONE, "ranks": [2], "at_lo": "2026-12-01T01:22:36.259000Z", "resume_from": None,
    }  # fmt: skip
    csv = call("query", "-e", "-", "--csv", input=sql).stdout.splitlines()
    assert csv == ["incident,ranks,at_lo,resume_from", f"{ONE},[2],2026-12-01T01:22:36.259000Z,"]
    listing = call("query", "--list").stdout
    assert "causes" in listing and "one_verdict" in listing and "verdicts" in listing
    assert ONE in call("query", "fleet/signatures", "--since", "2026-01-01", "--until", "2027-01-01").stdout


def test_the_state_of_an_incident(place: Path) -> None:
    assert "not analysed yet" in call("incident", "list").stderr
    call("analyze", "--incident", ONE)
    assert ONE in call("incident", "list").stdout
    shown = call("incident", "show", ONE).stdout
    assert "KeyError: 'labels'" in shown and "gap: node-n2: unreachable" in shown
    assert json.loads(call("incident", "show", ONE, "--json").stdout)["verdicts"][0]["incident"] == ONE


def test_compact_and_check(place: Path) -> None:
    call("analyze", "--incident", ONE)
    version = "v01000000000000000-00000000-0000"
    store = LocalStore(place)
    row = {"incident": "j", "date": "2026-12-01", "status": "established"}
    store.put(lake.lake_key("verdicts", "2026-12-01", "j", version), lake.to_parquet("verdicts", [row]))
    assert call("compact").stdout.startswith("1 day(s)")
    broken = call("lake", "check", code=4)
    assert "established_cites: 1 broken row(s)" in broken.stdout and "verdict_has_ledger" in broken.stdout
    assert set(json.loads(call("lake", "check", "--json", code=4).stdout)) >= {"established_cites"}
    assert call("compact", "--until", "2026-01-01").stdout.startswith("0 day(s)")


def test_a_sound_lake_passes(place: Path) -> None:
    call("analyze", "--incident", ONE)
    assert "all checks hold" in call("lake", "check").stderr


def test_a_store_that_refuses(place: Path) -> None:
    result = call("query", "causes", "--store", "s3://bucket/x", "--store-option", "nonsense=1", code=1)
    assert "nonsense" in result.stderr


def test_all_of_it_on_s3(place: Path, s3: Any) -> None:
    options = [word for name, value in s3.options.items() for word in ("--store-option", f"{name}={value}")]
    target = ["--store", f"s3://{s3.bucket}/cli", *options]
    remote = open_store(f"s3://{s3.bucket}/cli", options=s3.options)
    for item in LocalStore(place).list("raw/"):
        remote.put(item.key, LocalStore(place).get(item.key))
    assert ONE in call("analyze", "--pending", "--deadline", "0", *target).stdout
    assert "(1 row)" in call("query", "signatures", *target).stdout
    call("compact", *target)
    assert "all checks hold" in call("lake", "check", *target).stderr
