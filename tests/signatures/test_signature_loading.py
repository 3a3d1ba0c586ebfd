"""Loading: all problems at once, a site's own folder, and a cache that only ever costs time."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import yaml

from analyzers import signatures
from analyzers.signatures import SignatureError, check, load

GOOD = {
    "title": "A disk is on fire",
    "reads": ["rank_log"],
    "cause": "storage",
    "role": "initiating",
    "scope": "node",
    "strength": 3,
    "patterns": [{"regex": r"disk (?P<device>\w+) is on fire", "example": "ERROR: disk sda is on fire"}],
    "says": "It burns.",
    "no_match": ["disk sda is on"],
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write(root: Path, identity: str, **changes: object) -> Path:
    path = root / f"{identity}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({**GOOD, **changes}))
    return path


def test_a_site_folder_adds_and_replaces(tmp_path: Path) -> None:
    shipped = load()
    write(tmp_path / "site", "site/disk-on-fire")
    write(tmp_path / "site", "gloo/timed-out", title="Ours")
    both = load(tmp_path / "site")
    assert both.by_id["site/disk-on-fire"].family == "site"
    assert both.by_id["gloo/timed-out"].title == "Ours"
    assert len(both.by_id) == len(shipped.by_id) + 1
    assert both.hash != shipped.hash
    assert load().hash == shipped.hash


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"cause": "gremlins"}, "cause 'gremlins' is not one of"),
        ({"role": "guilty"}, "role 'guilty' is not one of"),
        ({"scope": "galaxy"}, "scope 'galaxy' is not one of"),
        ({"strength": 4}, "strength"),
        ({"colour": "red"}, "colour"),
        ({"patterns": []}, "patterns"),
        ({"no_match": []}, "no_match"),
        ({"patterns": [{"regex": "(?P<who>x)", "example": "x"}]}, "unknown group who"),
        ({"patterns": [{"regex": "x(?!y)", "example": "x"}]}, "outside the dialect"),
        ({"patterns": [{"regex": "(?<=a)x", "example": "ax"}]}, "outside the dialect"),
        ({"patterns": [{"regex": r"(a)\1", "example": "aa"}]}, "outside the dialect"),
        ({"patterns": [{"regex": "a++b", "example": "ab"}]}, "outside the dialect"),
        ({"patterns": [{"regex": "(?>a)b", "example": "ab"}]}, "outside the dialect"),
        ({"patterns": [{"regex": "(?i)fire", "example": "FIRE"}]}, "outside the dialect"),
        ({"patterns": [{"regex": "(", "example": "("}]}, "does not compile"),
    ],
    ids=str,
)
def test_a_wrong_field_is_named_with_its_file(tmp_path: Path, changes: dict[str, object], complaint: str) -> None:
    path = write(tmp_path / "site", "site/x", **changes)
    with pytest.raises(SignatureError) as caught:
        load(tmp_path / "site")
    assert len(caught.value.problems) == 1
    assert str(path) in caught.value.problems[0] and complaint in caught.value.problems[0]


def test_all_problems_are_listed_at_once(tmp_path: Path) -> None:
    root = tmp_path / "site"
    write(root, "site/a", cause="gremlins")
    write(root, "Site/B")
    (root / "site" / "c.yaml").write_text("title: [unclosed")
    (root / "site" / "d.yaml").write_text("- a list")
    (root / "site" / "e.yaml").write_bytes(b"\xff\xfe title")
    write(root, "site/fine")
    with pytest.raises(SignatureError) as caught:
        load(root)
    assert len(caught.value.problems) == 5
    for name in ("site/a", "Site/B", "site/c", "site/d", "site/e"):
        assert any(f"{name}.yaml" in problem for problem in caught.value.problems)


def test_a_missing_site_folder_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(SignatureError, match="not a folder"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"patterns": [{"regex": "fire", "example": "water"}]}, "does not match its example"),
        ({"no_match": ["disk sda is on fire"]}, "matches the line it must not match"),
        ({"caused_by": ["site/nobody"]}, "caused_by names 'site/nobody', which does not exist"),
        ({"causes": ["site/x"]}, "causes names the signature itself"),
        (
            {"patterns": [{"regex": "Broken pipe", "example": "gloo/transport/tcp/pair.cc:1] Broken pipe"}]},
            "gloo/broken-pipe also matches the example",
        ),
    ],
    ids=["example", "no-match", "relation", "self", "overlap"],
)
def test_check_finds(tmp_path: Path, changes: dict[str, object], complaint: str) -> None:
    write(tmp_path / "site", "site/x", **changes)
    problems = check(tmp_path / "site")
    assert len(problems) == 1 and complaint in problems[0], problems


def test_check_accepts_a_good_folder_and_a_declared_overlap(tmp_path: Path) -> None:
    write(tmp_path / "site", "site/x")
    write(
        tmp_path / "site",
        "site/y",
        patterns=[{"regex": "is on fire", "example": "disk sda is on fire"}],
        no_match=["disk sda is wet"],
        also=["site/x"],
    )
    assert check(tmp_path / "site") == []


def cache_file() -> Path:
    (file,) = Path(os.environ["XDG_CACHE_HOME"], "firstfault").glob("signatures-*")
    return file


def test_a_warm_load_reads_the_cache_and_gives_the_same_set(monkeypatch: pytest.MonkeyPatch) -> None:
    cold = load()
    assert cache_file().stat().st_mode & 0o077 == 0

    def refuse(*_: object) -> None:
        raise AssertionError("a warm load must not read YAML")

    monkeypatch.setattr(signatures, "_decode", refuse)
    warm = load()
    assert warm.hash == cold.hash and warm.by_id == cold.by_id and warm.patterns == cold.patterns


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = write(tmp_path / "site", "site/x")
    assert load(tmp_path / "site").by_id["site/x"].title == GOOD["title"]
    write(tmp_path / "site", "site/x", title="A disk drowned")
    os.utime(path, ns=(1, 1))
    assert load(tmp_path / "site").by_id["site/x"].title == "A disk drowned"
    path.unlink()
    assert "site/x" not in load(tmp_path / "site").by_id


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x93\xa1x\xa1y\x90"], ids=["empty", "garbage", "other-key"])
def test_a_damaged_cache_is_not_believed(content: bytes) -> None:
    expected = load().hash
    cache_file().write_bytes(content)
    assert load().hash == expected


def test_a_cache_that_others_can_write_is_not_believed() -> None:
    expected = load()
    file = cache_file()
    stolen = file.read_bytes().replace(b"gloo: timed out waiting", b"gloo: timed out w4iting")
    file.write_bytes(stolen)
    file.chmod(0o666)
    assert load().by_id["gloo/timed-out"].title == expected.by_id["gloo/timed-out"].title


def test_no_cache_folder_is_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file, not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert load().by_id
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    assert load().by_id


def test_the_hash_does_not_depend_on_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = load().hash
    copy = tmp_path / "copy"
    shutil.copytree(signatures.data_dir("signatures"), copy)
    monkeypatch.setattr(signatures, "data_dir", lambda _: copy)
    assert load().hash == here
