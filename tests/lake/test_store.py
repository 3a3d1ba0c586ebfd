"""The same promises of every store: whole objects, safe keys, listings by prefix, errors with a meaning."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collector.store import (
    LocalStore,
    Store,
    StoreMissing,
    StoreRefused,
    StoreUnavailable,
    check_key,
    open_store,
)


def keys(store: Store, prefix: str = "") -> list[str]:
    return sorted(item.key for item in store.list(prefix))


def test_an_object_comes_back_and_is_replaced(store: Store) -> None:
    store.put("raw/a/incident=x/node-1.parquet", b"first")
    store.put("raw/a/incident=x/node-1.parquet", b"second \x00\xff")
    assert store.get("raw/a/incident=x/node-1.parquet") == b"second \x00\xff"
    (item,) = store.list("raw/")
    assert (item.key, item.size) == ("raw/a/incident=x/node-1.parquet", 9)
    assert abs(item.modified - time.time()) < 600


def test_an_empty_object_is_an_object(store: Store) -> None:
    store.put("empty", b"")
    assert store.get("empty") == b"" and store.exists("empty")


def test_a_prefix_is_a_prefix_of_the_text(store: Store) -> None:
    for key in ("a/b", "a/bc/d", "a/c", "ab", "b/a"):
        store.put(key, b"x")
    assert keys(store, "a/b") == ["a/b", "a/bc/d"]
    assert keys(store, "a/") == ["a/b", "a/bc/d", "a/c"]
    assert keys(store, "a") == ["a/b", "a/bc/d", "a/c", "ab"]
    assert keys(store) == ["a/b", "a/bc/d", "a/c", "ab", "b/a"]
    assert keys(store, "zz/") == []


def test_listing_goes_beyond_one_page(store: Store) -> None:
    many = [f"many/{number:04d}" for number in range(1100)]
    for key in many:
        store.put(key, b"")
    assert keys(store, "many/") == many


def test_what_is_missing_says_so(store: Store) -> None:
    assert not store.exists("a/b")
    with pytest.raises(StoreMissing, match="a/b"):
        store.get("a/b")
    store.delete("a/b")
    assert keys(store) == []


def test_deleted_is_gone(store: Store) -> None:
    store.put("a/b", b"x")
    store.delete("a/b")
    store.delete("a/b")
    assert not store.exists("a/b") and keys(store) == []


def test_a_file_is_streamed_in(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "source"
    data = os.urandom(3 << 20)
    source.write_bytes(data)
    store.put("big/one", source)
    assert store.get("big/one") == data


def test_the_etag_tells_other_content(store: Store) -> None:
    store.put("a", b"x")
    (before,) = store.list("a")
    store.put("a", b"y")
    (after,) = store.list("a")
    assert before.etag and before.etag != after.etag


@pytest.mark.parametrize(
    "key",
    [
        "", "/etc/passwd", "../x", "a/../b", "a//b", "a/", ".hidden", "a/.tmp/x", "a b", "a\nb", "a\x00b", "a\\b",
        "ä", "x" * 241, "/".join(["x" * 200] * 5),
    ],
)  # fmt: skip
def test_unsafe_keys_are_refused(store: Store, key: str) -> None:
    for act in (lambda: store.put(key, b"x"), lambda: store.get(key), lambda: store.delete(key)):
        with pytest.raises(StoreRefused):
            act()


def test_safe_keys_are_what_we_write() -> None:
    for key in ("raw/log_lines/incident=slurm-c-12_3-0/node-a.b.parquet", "lake/x/date=2026-12-01/~day.v1-a.parquet"):
        assert check_key(key) == key


@pytest.mark.parametrize(
    "uri", ["file://host/x", "file:relative", "ftp://x/y", "s3://", "s3:///x", "s3://b/../x", "s3://b/a b", "gs://b"]
)
def test_addresses_that_are_none(uri: str) -> None:
    if uri == "file:relative":
        assert isinstance(open_store(uri), LocalStore)  # a path may hold a colon
        return
    with pytest.raises(StoreRefused):
        open_store(uri)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(StoreRefused, match="endpoint_urll"):
        open_store("s3://bucket", options={"endpoint_urll": "http://x"})


def test_a_folder_by_path_and_by_uri_is_one_place(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    open_store(str(folder)).put("a", b"x")
    store = open_store(folder.as_uri())
    assert store.get("a") == b"x" and "%20" in store.uri


def test_a_folder_that_is_not_there_is_an_empty_store(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "none")
    assert keys(store) == [] and not store.exists("a")
    assert not (tmp_path / "none").exists()


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    with pytest.raises(StoreRefused):
        LocalStore(tmp_path / "f").put("a", b"x")


def test_links_lead_nowhere(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    store = LocalStore(tmp_path / "store")
    store.put("a", b"x")
    (tmp_path / "store" / "link").symlink_to(secret)
    (tmp_path / "store" / "folder").symlink_to(tmp_path)
    assert keys(store) == ["a"]
    with pytest.raises(StoreRefused):
        store.get("link")


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, StoreUnavailable), (errno.EIO, StoreUnavailable), (errno.EROFS, StoreRefused)]
)
def test_trouble_with_the_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    store = LocalStore(tmp_path)
    store.put("a", b"old")

    def broken(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(kind):
        store.put("a", b"new")
    monkeypatch.undo()
    assert keys(store) == ["a"] and store.get("a") == b"old"
    assert list((tmp_path / ".tmp").iterdir()) == []


_WRITER = """
import sys
from pathlib import Path
from collector.store import LocalStore
store = LocalStore(Path(sys.argv[1]))
print("ready", flush=True)
for number in range(10**9):
    store.put("victim", bytes([number % 251]) * (1 << 20))
"""


def test_killed_writers_leave_whole_objects(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for delay in (0.0, 0.003, 0.01, 0.02, 0.05):
        with subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None and writer.stdout.readline()
            time.sleep(delay)
            writer.send_signal(signal.SIGKILL)
        for item in store.list(""):
            data = store.get(item.key)
            assert len(data) == 1 << 20 and len(set(data)) == 1


def test_left_over_temporaries_go_after_a_day(tmp_path: Path) -> None:
    folder = tmp_path / ".tmp"
    folder.mkdir()
    old, young = folder / "1-0-old", folder / "1-0-young"
    old.write_bytes(b"x")
    young.write_bytes(b"x")
    os.utime(old, (1, 1))
    LocalStore(tmp_path).put("a", b"x")
    assert [path.name for path in folder.iterdir()] == ["1-0-young"]
