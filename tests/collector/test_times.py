"""Time stamps: every format of the table, intervals, years, zones."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from collector.data import data_dir
from collector.readers import times

_EXAMPLES = [(row["name"], example) for row in times.formats() for example in row["examples"]]


def _micros(text: str) -> int:
    when = datetime.fromisoformat(text).replace(tzinfo=UTC)
    return round((when - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1_000_000)


@pytest.mark.parametrize(("name", "example"), _EXAMPLES, ids=[f"{n}-{i}" for i, (n, _) in enumerate(_EXAMPLES)])
def test_examples_of_the_table(name: str, example: dict[str, object]) -> None:
    noon = 1_796_126_400  # 2026-12-01T12:00:00Z, for the stamps without a date
    stamp = times.Clock(2026, noon).parse(str(example["text"]))
    assert stamp is not None
    assert stamp.lo == _micros(str(example["at"]))
    assert stamp.hi - stamp.lo == example["span"]


def test_lines_without_a_time_have_none() -> None:
    import yaml

    rows = yaml.safe_load((data_dir("signatures") / "_formats" / "times.yaml").read_text())
    for text in rows["healthy"]:
        assert times.Clock(2026).parse(text) is None, text


def test_a_time_of_day_without_any_date_is_no_time() -> None:
    assert times.Clock(2026).parse("04:27:58 step 3") is None


def test_a_time_of_day_crosses_midnight_with_its_neighbours() -> None:
    clock = times.Clock(2026)
    before = clock.parse("2026-12-01 23:59:58 step 1")
    after = clock.parse("00:00:03 step 2")
    assert before is not None
    assert after is not None
    assert after.lo - before.lo == 5_000_000


def test_impossible_dates_are_no_times() -> None:
    assert times.Clock(2026).parse("2026-13-41 99:99:99 nonsense") is None


def test_zone_shift_is_found_where_a_file_mixes_both() -> None:
    hour = 3600 * 1_000_000
    base = 1_796_000_000_000_000
    stamps = [(base + i * 1000 + (2 * hour if i % 2 else 0), bool(i % 2)) for i in range(10)]
    assert times.zone_shift(stamps) == -2 * hour
    assert times.zone_shift([(base, True), (base + 5, True)]) == 0


def test_iso_keeps_what_is_known() -> None:
    assert times.iso(None) is None
    assert times.iso(_micros("2026-12-01T01:13:17")) == "2026-12-01T01:13:17Z"
    assert times.iso(_micros("2026-12-01T01:13:17.250")) == "2026-12-01T01:13:17.250Z"
