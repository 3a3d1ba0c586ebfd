"""Every signature is tested by its own lines: its examples match, its look-alikes do not, and relations hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from analyzers.signatures import Signature, SignatureSet, check, load
from collector.data import data_dir
from collector.model import LogLine

BASE = load()
MATCHES = [pytest.param(s, i, id=f"{s.id}[match-{i}]") for s in BASE.by_id.values() for i, _ in enumerate(s.patterns)]
MISSES = [pytest.param(s, i, id=f"{s.id}[no-match-{i}]") for s in BASE.by_id.values() for i, _ in enumerate(s.no_match)]
SAMPLES = yaml.safe_load((Path(__file__).parent / "real_samples.yaml").read_text())


def line(text: str) -> LogLine:
    return LogLine(None, "rank0.log", 1, 0, 0, None, 0, 0, None, "stderr", "rank", None, None, text)


@pytest.fixture(scope="module")
def everything() -> SignatureSet:
    import msgspec

    return SignatureSet(msgspec.structs.replace(s, hot=True) for s in BASE.by_id.values())


def test_the_shipped_folder_has_no_problems() -> None:
    assert check(data_dir("signatures")) == []


@pytest.mark.parametrize(("signature", "number"), MATCHES)
def test_an_example_is_recognised(signature: Signature, number: int, everything: SignatureSet) -> None:
    hits = everything.match([line(signature.patterns[number].example)])
    assert signature.id in {hit.signature for hit in hits}
    assert re.search(signature.patterns[number].regex, signature.patterns[number].example)


@pytest.mark.parametrize(("signature", "number"), MISSES)
def test_a_look_alike_is_left_alone(signature: Signature, number: int, everything: SignatureSet) -> None:
    hits = everything.match([line(signature.no_match[number])])
    assert signature.id not in {hit.signature for hit in hits}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s["signature"])
def test_a_real_line_is_recognised(sample: dict[str, str], everything: SignatureSet) -> None:
    assert sample["signature"] in {hit.signature for hit in everything.match([line(sample["line"])])}


@pytest.mark.parametrize("signature", BASE.by_id.values(), ids=lambda s: s.id)
def test_symptoms_do_not_claim_a_cause(signature: Signature) -> None:
    """An unknown cause cannot be decisive, and what needs action says what to do and how to see that it worked."""
    assert not (signature.cause == "unknown" and signature.strength == 3)
    assert signature.fix
    assert signature.role == "context" or signature.verify
    assert len(signature.title) <= 120 and not signature.title.endswith(".")


@pytest.mark.parametrize("folder", sorted((Path(__file__).parents[1] / "healthy").iterdir()), ids=lambda p: p.name)
def test_healthy_logs_stay_silent(folder: Path) -> None:
    prefix = re.compile(r"^(?:\[(?:default|rank)\d+\]: ?|\([^)]*pid=\d+[^)]*\) )+")
    for log in sorted(folder.glob("*.log")):
        lines = [line(prefix.sub("", text)) for text in log.read_text(errors="replace").split("\n")]
        loud = [(h.signature, h.line.text) for h in BASE.match(lines) if BASE.by_id[h.signature].role != "context"]
        assert loud == []
