"""Log templates: what is the same line with other numbers, and what is new."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.templates import Templates


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("step 5/40 loss=5.7354 lr=1.00e-03", "step 39/40 loss=0.1 lr=9.5e-04"),
        ("2026-12-01 01:22:26,267 INFO saved", "2026-12-01 03:00:00,001 INFO saved"),
        ("loading /data/shard-17/a.bin now", "loading /data/shard-3/b.bin now"),
        ("object at 0x7f3a0011 freed", "object at 0x7f3a9911 freed"),
        ("commit deadbeef0123 checked out", "commit 0123deadbeef checked out"),
    ],
)
def test_numbers_times_paths_and_addresses_do_not_matter(one: str, other: str) -> None:
    templates = Templates()
    assert templates.add(one) == templates.add(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("step 5/40 loss=5.7", "no rows left for evaluation, skipping"),
        ("saving checkpoint", "loading checkpoint for the second time now"),
    ],
)
def test_other_words_are_another_template(one: str, other: str) -> None:
    templates = Templates()
    assert templates.add(one) != templates.add(other)


def test_what_was_learned_is_known_again() -> None:
    templates = Templates()
    normal = templates.learn(["step 1 loss 2.0", "", "   ", "epoch 1 done"])
    assert len(normal) == 2
    assert templates.add("step 77 loss 0.3") in normal
    assert templates.add("Killed worker 3 because of its memory") not in normal


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(max_size=2000), max_size=20))
def test_any_text_has_a_template_and_keeps_it(texts: list[str]) -> None:
    templates = Templates()
    assert all(isinstance(templates.add(text), int) for text in texts)
