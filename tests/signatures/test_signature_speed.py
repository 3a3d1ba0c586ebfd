"""No pattern may begin and end with what ordinary lines hold: one such costs as much time as all others together."""

from __future__ import annotations

import re

import pytest

from analyzers.signatures import load
from collector.data import lookup
from collector.expressions import Ordinary, expression
from collector.model import LogLine

BASE = load()
RARE_BYTES = re.compile(rb"(?:[A-Za-z0-9|]|\\x[0-9a-f]{2}|\[(?:\\x[0-9a-f]{2}){2}\])+")
"""An expression that is nothing but texts to look for."""


def test_each_pattern_can_be_looked_for_by_rare_bytes() -> None:
    ordinary = Ordinary("\n".join(lookup("ordinary_log")).encode())
    slow = [p for p in BASE.patterns if not RARE_BYTES.fullmatch(expression(p.encode(), ordinary) or b"(")]
    assert not slow, "write bounded blanks ( {0,8}) for \\s*, or begin with something that healthy lines lack"


@pytest.mark.parametrize(
    ("text", "signature"),
    [
        ("{'loss': nan, 'grad_norm': 1.0}", "python/non-finite-loss"),
        ('{"loss": "NaN", "step": 7}', "python/non-finite-loss"),
        ("step:  7  loss:      nan  memory: 9.99GiB", "python/non-finite-loss"),
        ("step 7 train_loss=nan lr=0.1", "python/non-finite-loss"),
        ("| epoch 001 | loss nan | ppl nan", "python/non-finite-loss"),
        ("Loss is  nan, stopping", "python/non-finite-loss"),
        ("loss = tensor(nan, device='cuda:0')", "python/non-finite-loss"),
        ("loss:\tnan", "python/non-finite-loss"),
        (" lm loss: 2.6E+00 | grad norm: nan | number of nan iterations:   0 |", "gpu/silent-corruption-hint"),
        ("{'loss': 1.5, 'grad_norm': inf, 'epoch': 0.3}", "gpu/silent-corruption-hint"),
        ('"gnorm": "nan", "clip": "100"', "gpu/silent-corruption-hint"),
        ("step:  7  grad_norm:     nan", "gpu/silent-corruption-hint"),
        ("grad_norm=inf", "gpu/silent-corruption-hint"),
        (" | number of skipped iterations:   3 | number of nan iterations:   0 |", "megatron/skipped-iterations"),
        (" | number of skipped iterations:   0 | number of nan iterations: 120 |", "megatron/skipped-iterations"),
    ],
)
def test_the_spellings_of_numbers_that_are_none(text: str, signature: str) -> None:
    line = LogLine(None, "rank0.log", 1, 0, 0, None, 0, None, None, None, "rank", None, None, text)
    assert signature in {hit.signature for hit in BASE.match([line])}


@pytest.mark.parametrize(
    "text",
    [
        " lm loss: 2.6E+00 | grad norm: 0.9 | number of skipped iterations:   0 | number of nan iterations:   0 |",
        "loss: 1.0 nan_steps: 0",
        "lossnan",
        "grad_norm: information",
    ],
)
def test_ordinary_numbers_are_no_hits(text: str) -> None:
    line = LogLine(None, "rank0.log", 1, 0, 0, None, 0, None, None, None, "rank", None, None, text)
    assert BASE.match([line]) == []
