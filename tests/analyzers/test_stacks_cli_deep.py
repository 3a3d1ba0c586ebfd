"""`firstfault stacks` on stacks of runaway recursions, and on names that hold secrets."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from analyzers.cli import cli

SECRET = "hf_" + "0123456789abcdefABCDEFghijklmnopqr"


def dump(folder: Path, rank: int, depth: int, name: str = "descend", file: str = "/opt/train/train.py") -> None:
    frames = "".join(f"    {name} ({file}:{10 + n % 2})\n" for n in range(depth))
    text = (
        f"Process {4000 + rank}: python train.py\nPython v3.11.9 (/usr/bin/python3.11)\n\n"
        f'Thread {4000 + rank} (active): "MainThread"\n{frames}    <module> ({file}:90)\n'
    )
    (folder / f"rank{rank}.pyspy.txt").write_text(text)


@pytest.mark.parametrize("depth", [1_100, 200_000])
def test_deep_stacks(tmp_path: Path, depth: int) -> None:
    dump(tmp_path, 0, depth)
    dump(tmp_path, 1, 3)
    began = time.monotonic()
    result = CliRunner().invoke(cli, ["stacks", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert time.monotonic() - began < 60
    left = depth + 1 - 300
    assert f"... {left:,} frames left out ..." in result.stdout
    assert result.stdout.count("descend") < 320
    as_json = json.loads(CliRunner().invoke(cli, ["stacks", str(tmp_path), "--json"]).stdout)
    deep, shallow = sorted(as_json["dumps"][0]["classes"], key=lambda c: -len(c["frames"]))
    assert len(deep["frames"]) == 300 and deep["left_out"] == left
    assert deep["frames"][-1].startswith("<module>")
    assert "left_out" not in shallow


def test_depths_differ_although_the_ends_are_equal(tmp_path: Path) -> None:
    dump(tmp_path, 0, 1_000)
    dump(tmp_path, 1, 1_100)
    found = json.loads(CliRunner().invoke(cli, ["stacks", str(tmp_path), "--json"]).stdout)
    assert sorted(c["left_out"] for c in found["dumps"][0]["classes"]) == [701, 801]


def test_secrets_in_names_of_files_and_functions(tmp_path: Path) -> None:
    for rank in (0, 1):
        dump(tmp_path, rank, 3, name=SECRET, file=f"/opt/{SECRET}/train.py")
    for options in ([], ["--json"]):
        result = CliRunner().invoke(cli, ["stacks", str(tmp_path), *options])
        assert result.exit_code == 0, result.output
        assert SECRET not in result.output and "[redacted:huggingface-token]" in result.output
