"""The S3 store against a real server, with what networks and administrators do to it."""

from __future__ import annotations

import datetime
import os
import socket
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collector.store import Store, StoreMissing, StoreRefused, StoreUnavailable, open_store


@pytest.fixture
def prefix(s3: Any) -> str:
    return f"s3://{s3.bucket}/f-{uuid.uuid4().hex}"


def through(proxy: Any, prefix: str, **more: Any) -> Store:
    return open_store(prefix, options=proxy.options(**more))


def listed(s3: Any, prefix: str) -> list[str]:
    return sorted(item.key for item in open_store(prefix, options=s3.options).list(""))


def test_big_objects_go_up_in_parts(s3: Any, prefix: str, tmp_path: Path) -> None:
    store = open_store(prefix, options={**s3.options, "part_bytes": 5 << 20})
    data = os.urandom(12 << 20)
    source = tmp_path / "big"
    source.write_bytes(data)
    store.put("from/file", source)
    store.put("from/bytes", data)
    assert store.get("from/file") == data == store.get("from/bytes")
    assert [item.size for item in store.list("from/")] == [12 << 20] * 2
    assert all("-" in item.etag for item in store.list("from/")), "an ETag of parts has a dash"


def test_a_prefix_keeps_stores_apart(s3: Any, prefix: str) -> None:
    one, other = (open_store(f"{prefix}/{name}", options=s3.options) for name in ("one", "other"))
    one.put("a", b"1")
    other.put("a", b"2")
    assert one.get("a") == b"1" and [item.key for item in one.list("")] == ["a"]
    assert one.uri == f"{prefix}/one"


def test_nothing_listens(prefix: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]  # bound, not listening: refused
        store = open_store(prefix, options={"endpoint_url": f"http://127.0.0.1:{port}", "attempts": 1,
                                            "access_key_id": "a", "secret_access_key": "b"})  # fmt: skip
        for act in (lambda: store.put("a", b"x"), lambda: store.get("a"), lambda: list(store.list(""))):
            with pytest.raises(StoreUnavailable):
                act()


def test_too_slow(proxy: Any, prefix: str) -> None:
    proxy.fail("delay", seconds=8)
    store = through(proxy, prefix, read_timeout=0.5, attempts=1)
    with pytest.raises(StoreUnavailable, match=r"[Tt]ime"):
        store.get("a")


@pytest.mark.parametrize(("status", "code"), [(503, "SlowDown"), (500, "InternalError"), (429, "TooManyRequests")])
def test_a_server_in_trouble(s3: Any, proxy: Any, prefix: str, status: int, code: str) -> None:
    through(proxy, prefix).put("before", b"x")
    proxy.fail("status", status=status, code=code)
    acts: list[Callable[[Store], Any]] = [
        lambda store: store.put("a", b"x"),
        lambda store: store.get("before"),
        lambda store: store.delete("before"),
        lambda store: store.exists("before"),
        lambda store: list(store.list("")),
    ]
    for act in acts:
        # a client that was throttled slows itself down: each act has a fresh one
        with pytest.raises(StoreUnavailable):
            act(through(proxy, prefix, attempts=1))
    proxy.faults.clear()
    assert listed(s3, prefix) == ["before"]


def test_short_trouble_is_not_noticed(proxy: Any, prefix: str) -> None:
    store = through(proxy, prefix, attempts=4)
    proxy.fail("status", "PUT ", count=2)
    store.put("a", b"x" * 1000)
    proxy.fail("reset", "GET ", count=1)
    assert store.get("a") == b"x" * 1000
    proxy.fail("cut_answer", "GET ", count=1)
    assert store.get("a") == b"x" * 1000


def test_an_upload_that_breaks_off_is_never_listed(s3: Any, proxy: Any, prefix: str) -> None:
    store = through(proxy, prefix)
    proxy.fail("cut_upload", "PUT ")
    with pytest.raises(StoreUnavailable):
        store.put("whole", os.urandom(1 << 20))
    assert listed(s3, prefix) == []


def test_parts_that_break_off_are_never_listed(s3: Any, proxy: Any, prefix: str) -> None:
    store = through(proxy, prefix, part_bytes=5 << 20)
    proxy.fail("cut_upload", "partNumber=2")
    with pytest.raises(StoreUnavailable):
        store.put("parts", os.urandom(11 << 20))
    assert listed(s3, prefix) == []
    proxy.faults.clear()
    data = os.urandom(11 << 20)
    store.put("parts", data)
    assert store.get("parts") == data


def test_an_overwrite_that_breaks_off_leaves_the_old(s3: Any, proxy: Any, prefix: str) -> None:
    store = through(proxy, prefix)
    store.put("a", b"old")
    proxy.fail("cut_upload", "PUT ")
    with pytest.raises(StoreUnavailable):
        store.put("a", os.urandom(1 << 20))
    assert open_store(prefix, options=s3.options).get("a") == b"old"


def test_an_answer_that_is_lost_does_not_double(s3: Any, proxy: Any, prefix: str) -> None:
    store = through(proxy, prefix, attempts=3)
    proxy.fail("drop_reply", "PUT ", count=1)
    store.put("a", b"x")
    assert listed(s3, prefix) == ["a"]
    assert sum(line.startswith("PUT ") for line in proxy.seen) == 2


def test_an_answer_that_is_always_cut(proxy: Any, prefix: str) -> None:
    store = through(proxy, prefix)
    store.put("a", os.urandom(100_000))
    proxy.fail("cut_answer", "GET ")
    with pytest.raises(StoreUnavailable):
        store.get("a")


def test_a_missing_key(s3: Any, prefix: str) -> None:
    with pytest.raises(StoreMissing):
        open_store(prefix, options=s3.options).get("a")


def test_a_missing_bucket_is_for_a_person(s3: Any) -> None:
    store = open_store("s3://no-such-bucket/x", options=s3.options)
    for act in (
        lambda: store.put("a", b"x"),
        lambda: store.get("a"),
        lambda: store.exists("a"),
        lambda: list(store.list("")),
    ):
        with pytest.raises(StoreRefused, match="bucket"):
            act()


@pytest.mark.parametrize("wrong", [{"secret_access_key": "wrong"}, {"access_key_id": "NOBODY"}])
def test_wrong_credentials_are_for_a_person(s3: Any, prefix: str, wrong: dict[str, str]) -> None:
    store = open_store(prefix, options={**s3.options, **wrong})
    for act in (lambda: store.put("a", b"x"), lambda: store.get("a"), lambda: list(store.list(""))):
        with pytest.raises(StoreRefused):
            act()


def test_a_reader_may_not_write(s3: Any, prefix: str) -> None:
    open_store(prefix, options=s3.options).put("a", b"x")
    store = open_store(prefix, options={**s3.options, **s3.reader})
    assert store.get("a") == b"x"
    with pytest.raises(StoreRefused, match="may not"):
        store.put("b", b"x")


def test_no_credentials_at_all(s3: Any, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    store = open_store(prefix, options={"endpoint_url": s3.options["endpoint_url"]})
    with pytest.raises(StoreRefused, match="credentials"):
        store.put("a", b"x")


def test_a_profile_that_is_not_there(prefix: str) -> None:
    with pytest.raises(StoreRefused, match="nobody"):
        open_store(prefix, options={"profile": "nobody"}).put("a", b"x")


def test_credentials_and_server_from_the_environment(s3: Any, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.options["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.options["secret_access_key"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.options["endpoint_url"])
    store = open_store(prefix)
    store.put("a", b"x")
    assert listed(s3, prefix) == ["a"]
    filesystem, root = store.filesystem()
    with filesystem.open_input_stream(f"{root}/a") as stream:
        assert stream.read() == b"x"


def test_a_clock_that_is_wrong(s3: Any, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worth a retry: clocks get set, and evidence must not be given up for it."""
    import botocore.auth

    def hour_ahead(*_: Any, **__: Any) -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC).replace(tzinfo=None) + datetime.timedelta(hours=1)

    monkeypatch.setattr(botocore.auth, "get_current_datetime", hour_ahead)
    store = open_store(prefix, options={**s3.options, "attempts": 1})
    with pytest.raises(StoreUnavailable, match="clock"):
        store.put("a", b"x")


def test_the_key_is_never_in_an_error(s3: Any, prefix: str) -> None:
    store = open_store(prefix, options={**s3.options, "secret_access_key": "wrongsecretvalue"})
    with pytest.raises(StoreRefused) as caught:
        store.get("a")
    assert "wrongsecretvalue" not in str(caught.value) and "wrongsecretvalue" not in store.uri
