"""Pseudonyms are the same everywhere for one key, and tell nothing without it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.pseudonyms import Pseudonymiser

KEY = b"0123456789abcdef"
NAMES = st.from_regex(r"[a-z][a-z0-9_-]{2,12}", fullmatch=True).filter(lambda name: name != "root")


def test_hosts() -> None:
    one = Pseudonymiser(KEY)
    assert re.fullmatch(r"host-[0-9a-f]{10}", one.host("node-001"))
    assert one.host("node-001") == one.host("node-001.cluster.example.org") == one.host("NODE-001")
    assert one.host("node-001") != one.host("node-002")
    assert one.host("10.0.0.1") != one.host("10.0.0.2")
    assert one.host("fe80::1") != one.host("fe80::2")
    assert one.host("") == ""


def test_keys_matter() -> None:
    assert Pseudonymiser(KEY).user("alice") == Pseudonymiser(KEY).user("alice")
    assert Pseudonymiser(KEY).user("alice") != Pseudonymiser(KEY + b"x").user("alice")
    assert Pseudonymiser(KEY).user("alice") != Pseudonymiser(KEY).host("alice").replace("host", "user")
    with pytest.raises(ValueError, match="16 bytes"):
        Pseudonymiser(b"short")


def test_root_stays() -> None:
    assert Pseudonymiser(KEY).user("root") == "root"
    assert Pseudonymiser(KEY).path("/root/x") == "/root/x"


@pytest.mark.parametrize(
    "path", ["/home/{}/run/log.txt", "/Users/{}/x", "/lustre/home/{}", "~{}/x", "/data/users/{}/y"]
)
@given(name=NAMES)
def test_home_paths(path: str, name: str) -> None:
    one = Pseudonymiser(KEY)
    assert one.path(path.format(name)) == path.format(one.user(name))


def test_paths_without_a_home_stay() -> None:
    for path in ("/opt/conda/lib/python3.11/site-packages/torch/x.py", "rank0.log", "/homeless/x", "~/x", "a~b/c"):
        assert Pseudonymiser(KEY).path(path) == path


def test_known_names_are_replaced_everywhere() -> None:
    one = Pseudonymiser(KEY)
    alice, node1, node10 = one.user("alice"), one.host("node-1"), one.host("node-10")
    assert one.text("alice@node-10: /scratch/alice/run on node-1, malice on node-100") == (
        f"{alice}@{node10}: /scratch/{alice}/run on {node1}, malice on node-100"
    )
    assert one.text("node-1.cluster.local") == f"{node1}.cluster.local"


@given(name=NAMES)
def test_twice_is_once(name: str) -> None:
    one = Pseudonymiser(KEY)
    text = one.text(f"/home/{name}/x {one.host(name)}")
    assert one.text(text) == text
    assert one.user(one.user(name)) == one.user(name)
