"""Each rule masks its examples and what looks like them, and leaves alone what only resembles them."""

from __future__ import annotations

import random
import re

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from collector import locators
from collector.data import data_dir
from collector.redact import Rule, redact, redact_blocks, redact_bytes, rules

RULES = {rule.id: rule for rule in rules()}
MATCH = [pytest.param(rule, text, id=f"{rule.id}[{n}]") for rule in rules() for n, text in enumerate(rule.match)]
NO_MATCH = [pytest.param(rule, text, id=f"{rule.id}[{n}]") for rule in rules() for n, text in enumerate(rule.no_match)]
EACH = [pytest.param(rule, id=rule.id) for rule in rules()]


def secret_of(rule: Rule, text: str) -> str | None:
    for match in re.finditer(rule.pattern.encode(), text.encode()):
        if rule.is_secret(match["secret"]):
            return match["secret"].decode()
    return None


def test_there_are_many() -> None:
    assert len(RULES) == len(rules()) >= 60


@pytest.mark.parametrize("rule", EACH)
def test_rule_is_well_formed(rule: Rule) -> None:
    assert re.fullmatch(r"[a-z0-9-]+", rule.id)
    assert rule.title
    assert rule.match
    assert rule.no_match
    assert not re.search(r"\(\?<?[=!]", rule.pattern), "look-around"
    assert re.compile(rule.pattern.encode()).groupindex == {"secret": 1}
    assert locators.literals(rule.pattern.encode()) is not None, "would be tried on every line"


@pytest.mark.parametrize(("rule", "text"), MATCH)
def test_match(rule: Rule, text: str) -> None:
    secret = secret_of(rule, text)
    assert secret
    masked, count = redact(text)
    assert count >= 1
    assert secret not in masked
    assert "[redacted:" in masked
    assert redact(masked) == (masked, 0), "masking again must change nothing"


@pytest.mark.parametrize(("rule", "text"), NO_MATCH)
def test_no_match(rule: Rule, text: str) -> None:
    assert redact(text) == (text, 0)


def test_examples_hold_nothing_a_scanner_reports() -> None:
    for path in (data_dir("signatures") / "_redaction").glob("[a-z]*.yaml"):
        for item in yaml.safe_load(path.read_bytes()):
            for text in item["match"]:
                assert "¦" in text, f"{item['id']}: break the secret of {text!r}"


SEPARATORS = [" ", "\n", "\t", '" ', " '", " (", "\r\n", " | "]
NOISE = st.text("ab XY09:=/-_.,;&?\n\"'é[]{}", max_size=30)


ONE_LINE = st.characters(min_codepoint=32, max_codepoint=126)


def variant(secret: str, seed: int) -> str:
    """Another secret of the same form: each digit or letter of the last half becomes another of its kind."""
    rng = random.Random(seed)
    kinds = ("234567", "abcdef", "ghijklmnopqrstuvwxyz", "ABCDEF", "GHIJKLMNOPQRSTUVWXYZ")
    half = len(secret) // 2
    tail = (next((rng.choice(kind) for kind in kinds if char in kind), char) for char in secret[half:])
    return secret[:half] + "".join(tail)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.parametrize("rule", EACH)
@given(data=st.data())
def test_no_secret_survives(rule: Rule, data: st.DataObject) -> None:
    example = data.draw(st.sampled_from(rule.match))
    secret = secret_of(rule, example)
    assert secret
    other = variant(secret, data.draw(st.integers(0, 10**6)))
    if secret_of(rule, example.replace(secret, other)) == other:
        example, secret = example.replace(secret, other), other
    assume(len(secret) >= 5)
    before = "\n" if rule.pattern.startswith("^") else data.draw(st.sampled_from(SEPARATORS))
    text = data.draw(NOISE) + before + example + data.draw(st.sampled_from(SEPARATORS)) + data.draw(NOISE)
    raw = text.encode()
    masked, count = redact_bytes(raw)
    assert count >= 1
    assert secret.encode() not in masked
    assert masked.count(b"\n") == raw.count(b"\n")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    chunks = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert b"".join(redact_blocks(chunks)) == masked


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@pytest.mark.parametrize("rule", [rule for rule in rules() if rule.entropy is None], ids=lambda rule: rule.id)
@given(data=st.data())
def test_whatever_the_pattern_describes(rule: Rule, data: st.DataObject) -> None:
    generated = data.draw(st.from_regex(re.compile(rule.pattern, re.ASCII), alphabet=ONE_LINE))
    match = re.search(rule.pattern.encode(), generated.encode())
    assume(match and rule.is_secret(match["secret"]) and len(match["secret"]) >= 5)
    assert match
    elsewhere = generated.encode()[: match.start("secret")] + b"|" + generated.encode()[match.end("secret") :]
    assume(match["secret"] not in elsewhere)
    masked, count = redact_bytes(generated.encode())
    assert count >= 1
    assert match["secret"] not in masked
