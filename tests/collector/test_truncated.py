"""Logs whose end is missing: all up to the break is read, the ledger says so, and nobody calls such a run healthy."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import zstandard

from analyzers.diagnose import diagnose
from analyzers.report import text as text_report
from collector import opening
from collector.classify import classify
from collector.model import Artifact, ArtifactKind, Origin, Outcome
from collector.opening import opener
from collector.readers import rank_log, windows

FORMS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
}
OOM = "[rank1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"


def healthy(steps: int = 10_000) -> bytes:
    """Progress of two ranks that compresses as logs do; several blocks of every form from 10 000 steps on."""
    numbers = random.Random(7)
    lines = (f"[rank{i % 2}] INFO step {i // 2} loss {numbers.random()} {'x' * (i % 9)}\n" for i in range(2 * steps))
    return "".join(lines).encode()


TEXT = healthy()


def read(folder: Path, name: str) -> tuple[bytes, str | None]:
    with opener(folder, [name])() as stream:
        return stream.read(), stream.raw.note  # type: ignore[attr-defined]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cut", [1, 4, 40, 5_000])
def test_a_cut_is_noticed_wherever_it_is(tmp_path: Path, form: str, cut: int) -> None:
    (tmp_path / "a").write_bytes(FORMS[form](TEXT)[:-cut])
    got, note = read(tmp_path, "a")
    assert TEXT.startswith(got)
    assert note is not None and "cut off" in note


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_zstd_frame_is_whole_only_with_its_last_byte(tmp_path: Path, cut: int) -> None:
    skippable = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
    for size in (0, 40, 300_000):
        frame = FORMS["zst"](TEXT[:size])
        (tmp_path / "a").write_bytes(frame + skippable + frame)
        assert read(tmp_path, "a") == (TEXT[:size] * 2, None)
        if cut < len(frame):
            (tmp_path / "a").write_bytes(frame + skippable + frame[:-cut])
            assert read(tmp_path, "a")[1] is not None


def test_gzip_gives_every_byte_up_to_the_break(tmp_path: Path) -> None:
    stored = gzip.compress(TEXT)[:-40]
    recovered = zlib.decompressobj(wbits=31).decompress(stored)
    (tmp_path / "a").write_bytes(stored)
    assert read(tmp_path, "a")[0] == recovered
    assert len(TEXT) - len(recovered) < 200


def test_bz2_gives_every_whole_block(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bz2.compress(TEXT)[:-40])
    assert len(read(tmp_path, "a")[0]) > 890_000


def test_zstd_gives_every_whole_block(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(FORMS["zst"](TEXT)[:-40])
    assert len(TEXT) - len(read(tmp_path, "a")[0]) <= 128 << 10


@pytest.mark.parametrize("form", FORMS)
def test_damage_in_the_middle_keeps_what_stands_before(tmp_path: Path, form: str) -> None:
    long = healthy(40_000)
    stored = bytearray(FORMS[form](long))
    middle = len(stored) // 2
    stored[middle : middle + 64] = b"\xff" * 64
    (tmp_path / "a").write_bytes(stored)
    got, note = read(tmp_path, "a")
    # xz checks at the end of its blocks only: some nonsense may follow what is true
    assert note is not None and got[: len(long) // 3] == long[: len(long) // 3]


def test_a_file_that_inflates_to_exactly_the_cap_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "expansion_cap", lambda _: len(TEXT))
    (tmp_path / "a").write_bytes(gzip.compress(TEXT))
    assert read(tmp_path, "a") == (TEXT, None)


@pytest.mark.parametrize("max_lines", [600_000, 300])
def test_the_log_reader_says_where_the_log_breaks_off(tmp_path: Path, max_lines: int) -> None:
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(TEXT)[:-40])
    size = len(read(tmp_path, "a.log.gz")[0])
    log = rank_log.read(
        Artifact(ArtifactKind.RANK_LOG, "a.log.gz", Origin(), 1, opener(tmp_path, ["a.log.gz"])), max_lines
    )
    row = log.ledger[0]
    assert (row.outcome, row.dropped_from, row.dropped_to) == (Outcome.TRUNCATED, size, size)
    assert row.detail is not None and "cut off" in row.detail


@pytest.mark.parametrize("form", FORMS)
def test_a_log_without_its_end_is_not_healthy(tmp_path: Path, form: str) -> None:
    name = f"train.log.{form}"
    (tmp_path / name).write_bytes(FORMS[form](TEXT + OOM.encode())[:-100])
    answer = diagnose(tmp_path)
    verdict = answer["verdict"]
    assert verdict["status"] == "undetermined"
    assert verdict["title"] == f"The end of {name} is missing, so a failure there cannot be ruled out"
    assert any(name in said for said in verdict["missing"])
    (tmp_path / name).write_bytes(FORMS[form](TEXT))
    assert diagnose(tmp_path)["verdict"]["status"] == "no_failure"


@pytest.mark.parametrize("form", FORMS)
def test_one_unreadable_rank_among_healthy_ones(tmp_path: Path, form: str) -> None:
    """So little of the file is there that nothing can be decompressed."""
    (tmp_path / "rank0.log").write_text("step 1 loss 2.0\nstep 2 loss 1.9\n")
    (tmp_path / f"rank1.log.{form}").write_bytes(FORMS[form](b"step 1 loss 2.0\nstep 2 loss 1.9\n")[:14])
    verdict = diagnose(tmp_path)["verdict"]
    assert verdict["status"] == "undetermined" and f"rank1.log.{form}" in verdict["title"]


def test_a_gap_in_the_middle_takes_no_end_away(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_bytes(b"step 0 loss 2.0\n" + b"x" * (200 << 10) + b"\n" + TEXT[:100_000])
    answer = diagnose(tmp_path)
    assert any("line too long" in gap for gap in answer["ledger"]["gaps"])
    assert answer["verdict"]["status"] == "no_failure"


def test_a_failure_before_the_break_is_still_found(tmp_path: Path) -> None:
    (tmp_path / "train.log.gz").write_bytes(gzip.compress(TEXT + OOM.encode())[:-9])
    verdict = diagnose(tmp_path)["verdict"]
    assert verdict["ranks"] == [1] and verdict["signature"].startswith("cuda/")


# --- huge lines -------------------------------------------------------------------------------------------------------

ERROR = b" RuntimeError: CUDA error: an illegal memory access was encountered"


def huge_line(path: Path, size: int, after: int = 0) -> None:
    """A first line, then a sparse one of `size` bytes that ends with ERROR, then `after` short ones."""
    with path.open("wb") as file:
        file.write(b"[rank0]: step 1 loss 2.0\n[rank0]: dump ")
        file.truncate(size)
        file.seek(0, io.SEEK_END)
        file.write(ERROR + b"\n" + b"[rank1]: INFO waiting for the next batch of the loader\n" * after)


def test_the_end_of_a_line_of_300_mb_is_seen(tmp_path: Path) -> None:
    huge_line(tmp_path / "train.log", 300 << 20)
    lines, _ = windows.select(lambda: (tmp_path / "train.log").open("rb"), 600_000, None)
    assert [line.line for line in lines] == [1, 2]
    assert lines[1].data.startswith(b"[rank0]: dump ") and lines[1].data.endswith(ERROR)
    assert len(lines[1].data) < 1 << 20
    verdict = diagnose(tmp_path)["verdict"]
    assert verdict["signature"] == "cuda/illegal-memory-access" and verdict["ranks"] == [0]


def test_the_end_of_a_huge_line_is_seen_far_from_the_end_of_the_file(tmp_path: Path) -> None:
    huge_line(tmp_path / "train.log", 40 << 20, after=200_000)

    def locate(file: BinaryIO) -> Iterator[tuple[int, int, int, int]]:
        from collector.patterns import compile_patterns
        from collector.patterns import locate as located

        for hit in located(file, compile_patterns(["illegal memory access"], cache=None)):
            yield hit.pattern, hit.line, hit.start, hit.end

    lines, _ = windows.select(lambda: (tmp_path / "train.log").open("rb"), 2000, locate)
    texts = {line.line: line.data for line in lines}
    assert len(texts) == len(lines)
    assert texts[2].endswith(ERROR) and texts[3].startswith(b"[rank1]") and 200_002 in texts


# --- reports ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["report.txt", "firstfault.log", "report"])
@pytest.mark.parametrize("how", [{}, {"color": True}, {"verbose": True}, {"width": 200}])
def test_a_report_in_the_folder_is_no_evidence(tmp_path: Path, name: str, how: dict[str, Any]) -> None:
    (tmp_path / "rank1.log").write_text("step 1 loss 2.0\n" + OOM)
    report = text_report.render(diagnose(tmp_path), **how)
    kind = classify(name, report.encode())
    assert kind.kind is None and kind.outcome is Outcome.NOT_CONFIGURED
    assert classify(name, report.encode() + b"step 1 loss 2.0\n[rank0] Traceback (most recent call last)\n").kind


def test_a_healthy_folder_stays_healthy_beside_a_report_of_a_failure(tmp_path: Path) -> None:
    (tmp_path / "rank1.log").write_text("step 1 loss 2.0\n" + OOM)
    report = text_report.render(diagnose(tmp_path))
    (tmp_path / "rank1.log").write_text("step 1 loss 2.0\nstep 2 loss 1.9\n")
    (tmp_path / "report.txt").write_text(report)
    assert diagnose(tmp_path)["verdict"]["status"] == "no_failure"


# --- compressed logs of more than 32 MiB ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large() -> bytes:
    line = (
        b"[rank%d]: 2026-03-01 10:00:00 INFO step %07d loss 2.345 lr 0.0003 " + b"tokens per second 12345 " * 6 + b"\n"
    )
    body = b"".join(line % (i % 2, i // 2) for i in range(170_000))
    assert len(body) > windows.FULL_BYTES
    return body + OOM.encode() + line % (0, 85_000)


@pytest.mark.parametrize("form", FORMS)
def test_a_compressed_log_of_more_than_32_mib_is_read_to_its_end(tmp_path: Path, form: str, large: bytes) -> None:
    packed = lzma.compress(large, preset=0) if form == "xz" else FORMS[form](large)
    (tmp_path / f"train.log.{form}").write_bytes(packed)
    answer = diagnose(tmp_path)
    assert answer["verdict"]["ranks"] == [1], answer["verdict"]
    assert answer["verdict"]["evidence"][0]["line"] == 170_001
    assert not any("cut off" in gap for gap in answer["ledger"]["gaps"])


def test_a_compressed_log_of_more_than_32_mib_comes_through_a_pipe(large: bytes) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "analyzers.cli", "diagnose", "-", "--json"],
        input=gzip.compress(large, 1),
        capture_output=True,
        check=False,
    )
    verdict = json.loads(done.stdout)["verdict"]
    assert verdict["ranks"] == [1] and verdict["evidence"][0]["line"] == 170_001
