"""The collector's prefilter sees what the analyzers' signatures see."""

from __future__ import annotations

import io

from analyzers.signatures import load
from collector import prefilter


def test_same_expressions_as_the_signatures() -> None:
    assert sorted(prefilter.patterns().patterns) == sorted(load().prefilter().patterns)


def test_a_large_log_is_cut_around_what_matters() -> None:
    from collector.model import Artifact, ArtifactKind, Origin
    from collector.readers import rank_log

    lines = [f"step {number} loss 1.0" for number in range(40_000)]
    lines[17_000] = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    data = "\n".join(lines).encode()
    artifact = Artifact(ArtifactKind.RANK_LOG, "r.log", Origin(), len(data), lambda: io.BytesIO(data))
    log = rank_log.read(artifact, 500, prefilter.locate)
    kept = {line.line: line.text for line in log.lines}
    assert "out of memory" in kept[17_001]
    assert len(kept) < 20_000
    assert log.ledger
