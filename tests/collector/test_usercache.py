"""The cache believes only what is ours, and never fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from collector import usercache


def test_round_trip(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "firstfault"
    assert usercache.get(folder, "x") is None
    assert usercache.put(folder, "x", b"one")
    assert usercache.put(folder, "x", b"two")
    assert usercache.get(folder, "x") == b"two"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "x").stat().st_mode & 0o077 == 0
    assert [entry.name for entry in folder.iterdir()] == ["x"]


def test_what_others_may_write_is_not_believed(tmp_path: Path) -> None:
    assert usercache.put(tmp_path / "cache", "x", b"one")
    (tmp_path / "cache" / "x").chmod(0o622)
    assert usercache.get(tmp_path / "cache", "x") is None
    (tmp_path / "cache" / "x").chmod(0o600)
    (tmp_path / "cache").chmod(0o777)
    assert usercache.get(tmp_path / "cache", "x") is None
    assert not usercache.put(tmp_path / "cache", "y", b"two")


def test_somebody_elses_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert usercache.put(tmp_path / "cache", "x", b"one")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert usercache.get(tmp_path / "cache", "x") is None
    assert not usercache.put(tmp_path / "cache", "x", b"two")


def test_links_and_pipes(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert usercache.put(cache, "real", b"one")
    (cache / "link").symlink_to(cache / "real")
    os.mkfifo(cache / "pipe", 0o600)
    (cache / "folder").mkdir()
    (tmp_path / "elsewhere").symlink_to(cache)
    assert usercache.get(cache, "link") is None
    assert usercache.get(cache, "pipe") is None
    assert usercache.get(cache, "folder") is None
    assert usercache.get(tmp_path / "elsewhere", "real") is None
    assert not usercache.put(cache, "folder", b"x")
    assert not list(cache.glob(".folder*"))


def test_nowhere_to_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert not usercache.put(tmp_path / "file" / "cache", "x", b"one")
    assert not usercache.put(None, "x", b"one")
    assert usercache.get(None, "x") is None


def test_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert usercache.default_folder() == Path("/x/firstfault")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/h")
    assert usercache.default_folder() == Path("/h/.cache/firstfault")
    monkeypatch.delenv("HOME")
    assert usercache.default_folder() is None
