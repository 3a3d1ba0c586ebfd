"""Opening files: links, types, sizes and compression."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from collector import opening
from collector.opening import NotRegular, content, open_file, opener

TEXT = b"step 1 loss 0.5\n" * 5000
FORMS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
}


@pytest.mark.parametrize("form", FORMS)
def test_compressed_content_is_read_whatever_the_name(tmp_path: Path, form: str) -> None:
    (tmp_path / "train.log").write_bytes(FORMS[form](TEXT))
    with opener(tmp_path, ["train.log"])() as stream:
        assert stream.read() == TEXT
        assert stream.raw.note is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("form", FORMS)
def test_two_compressed_streams_in_one_file_are_one_content(tmp_path: Path, form: str) -> None:
    (tmp_path / "a").write_bytes(FORMS[form](TEXT) + FORMS[form](b"the end\n"))
    with opener(tmp_path, ["a"])() as stream:
        assert stream.read() == TEXT + b"the end\n"


@pytest.mark.parametrize("form", FORMS)
def test_what_is_cut_off_ends_early_with_a_note(tmp_path: Path, form: str) -> None:
    noise = os.urandom(300_000)
    (tmp_path / "a").write_bytes(FORMS[form](noise)[:-1000])
    with opener(tmp_path, ["a"])() as stream:
        got = stream.read()
        assert noise.startswith(got)
        # a zstd stream that is cut between blocks does not say so
        assert form == "zst" or "cut off" in stream.raw.note  # type: ignore[attr-defined]


def test_an_expansion_is_capped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "EXPANSION_FLOOR", 1 << 20)
    (tmp_path / "a").write_bytes(gzip.compress(b"\0" * (64 << 20)))
    stored = (tmp_path / "a").stat().st_size
    with opener(tmp_path, ["a"])() as stream:
        got = 0
        while block := stream.read(1 << 16):
            got += len(block)
        assert got == opening.expansion_cap(stored) < 64 << 20
        assert "expansion stopped" in stream.raw.note  # type: ignore[attr-defined]


def test_a_link_is_not_followed_at_the_end_or_on_the_way(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").symlink_to(outside / "secret")
    (root / "folder").symlink_to(outside)
    for parts in (["file"], ["folder", "secret"]):
        with pytest.raises(OSError):
            open_file(root, parts)


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for name in ("fifo", "socket", "."):
            with pytest.raises(NotRegular):
                open_file(tmp_path, [name])
    with pytest.raises(NotRegular):
        open_file(Path("/dev"), ["zero"])


def test_a_file_that_grows_is_read_to_its_size_at_opening(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"x" * 100)
    with content(open_file(tmp_path, ["a.log"])) as stream, path.open("ab") as writer:
        writer.write(b"y" * 100)
        writer.flush()
        assert stream.read() == b"x" * 100


def test_a_file_that_shrinks_ends_early_with_a_note(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"x" * 3_000_000)
    with content(open_file(tmp_path, ["a.log"])) as stream:
        assert stream.read(10) == b"x" * 10
        os.truncate(path, 2_000_000)
        assert len(stream.read()) < 3_000_000
        assert "shrank" in stream.raw.note  # type: ignore[attr-defined]


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a").write_bytes(gzip.compress(TEXT))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        with opener(tmp_path, ["d", "a"])() as stream:
            stream.read(1)
        with pytest.raises(OSError):
            open_file(tmp_path, ["d", "no"])
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1
