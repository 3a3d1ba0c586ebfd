"""Formulas of fleet reliability against published figures, tables of quantiles, and simulation-free identities."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers import fleet

RSC_1, RSC_2 = 6.5e-3, 2.34e-3
"""Failures per node-day of the two clusters of Kokolis et al. (HPCA 2025), nodes of 8 GPUs."""


@pytest.mark.parametrize(
    ("k", "lo", "hi"), [(0, 0, 2.996), (1, 0.051, 4.744), (10, 5.425, 16.962), (35, 25.870, 46.404)]
)
def test_exact_poisson_interval_per_1000_node_days(k, lo, hi):
    found = fleet.rate(k, 1000, 0.90)
    assert found.lo * 1000 == pytest.approx(lo, abs=5e-4)
    assert found.hi * 1000 == pytest.approx(hi, abs=5e-4)
    assert found.value * 1000 == pytest.approx(k)


def test_llama_3_rate():
    """419 unexpected interruptions in 54 days of 2,048 nodes (Llama 3, table 5)."""
    found = fleet.rate(419, 54 * 16_384 / 8)
    assert [x * 1000 for x in (found.value, found.lo, found.hi)] == pytest.approx([3.789, 3.489, 4.108], abs=5e-4)
    assert 1 / fleet.rate(419, 54 * 24).value == pytest.approx(3.09, abs=5e-3)


def test_glm_130b_rate():
    """11 infrastructure interruptions in 53.83 days of 96 nodes (its public log, our coding)."""
    found = fleet.rate(11, 53.83 * 96)
    assert [x * 1000 for x in (found.value, found.lo, found.hi)] == pytest.approx([2.13, 1.194, 3.523], abs=2e-3)


@pytest.mark.parametrize(("gpus", "hours"), [(16_384, 1.803), (131_072, 0.225)])
def test_mttf(gpus, hours):
    assert fleet.mttf_hours(gpus / 8, RSC_1) == pytest.approx(hours, abs=5e-4)


def test_mttf_without_failures_is_infinite():
    assert fleet.mttf_hours(100, 0) == math.inf


@pytest.mark.parametrize(
    ("gpus", "rate", "interval", "restart", "queue", "value", "valid"),
    [
        (16_000, RSC_1, 60, 5, 0, 0.684, False),
        (16_000, RSC_1, 5, 5, 0, 0.932, True),
        (8_000, RSC_1, 30, 5, 0, 0.910, True),
        (8_000, RSC_1, 30, 5, 1, 0.905, True),
        (100_000, RSC_1, 7, 5, 0, 0.520, False),
        (100_000, RSC_2, 2, 2, 0, 0.939, True),
    ],
)
def test_expected_ettr(gpus, rate, interval, restart, queue, value, valid):
    found = fleet.ettr(gpus / 8, rate, interval_min=interval, restart_min=restart, queue_min=queue)
    assert found.value == pytest.approx(value, abs=1e-3)
    assert found.valid is valid


@pytest.mark.parametrize(("gpus", "interval", "value"), [(16_000, 60, 0.720), (100_000, 7, 0.615)])
def test_exact_ettr_beyond_the_closed_form(gpus, interval, value):
    assert fleet.ettr_exact(gpus / 8, RSC_1, interval_min=interval, restart_min=5) == pytest.approx(value, abs=5e-4)


@pytest.mark.parametrize(("rate", "write", "interval", "value"), [(6.5e-3, 10 / 60, 7.0, 0.921), (1e-3, 5, 98, 0.898)])
def test_optimal_checkpoint_interval(rate, write, interval, value):
    best = fleet.optimal_interval_min(12_000 / 8, rate, write)
    assert best == pytest.approx(interval, rel=5e-3)
    found = fleet.ettr(12_000 / 8, rate, interval_min=best, restart_min=5, write_min=write)
    assert found.value == pytest.approx(value, abs=6e-4)


def test_delta_mean_time_between_errors():
    """GPU-hours and error counts of the Delta study: system and per-GPU values, ratio of the generations."""
    a100, h100 = 895 * 24 * 448, 146 * 24 * 608
    per_gpu = 1 / fleet.rate(34, a100).value, 1 / fleet.rate(24, h100).value
    assert per_gpu == pytest.approx((283_031, 88_768), abs=0.5)
    assert per_gpu[0] / per_gpu[1] == pytest.approx(3.2, abs=0.05)
    system = 1 / fleet.rate(14_821, 895 * 24).value, 1 / fleet.rate(1_821, 146 * 24).value
    assert system == pytest.approx((1.449, 1.924), abs=5e-4)


# Upper tails of the chi-square distribution as printed in tables: (degrees of freedom, probability below, value).
@pytest.mark.parametrize(
    ("degrees", "p", "value"),
    [(2, 0.95, 5.991), (4, 0.05, 0.711), (10, 0.95, 18.307), (20, 0.05, 10.851), (100, 0.95, 124.342)],
)
def test_gamma_quantile_is_half_a_chi_square(degrees, p, value):
    assert 2 * fleet.gamma_quantile(p, degrees / 2) == pytest.approx(value, abs=5e-4)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 400), st.floats(0.001, 0.999))
def test_gamma_quantile_inverts_the_poisson_sum(shape, p):
    x = fleet.gamma_quantile(p, shape)
    below = math.fsum(math.exp(i * math.log(x) - x - math.lgamma(i + 1)) for i in range(shape))
    assert 1 - below == pytest.approx(p, abs=1e-9)


def test_large_counts_are_nearly_normal():
    found = fleet.rate(1_000_000, 1_000_000)
    assert (found.lo, found.hi) == pytest.approx((1 - 1.645e-3, 1 + 1.645e-3), abs=2e-6)


@pytest.mark.parametrize(("k", "exposure", "level"), [(-1, 1, 0.9), (1, 0, 0.9), (1, math.nan, 0.9), (1, 1, 1.0)])
def test_impossible_rates_are_refused(k, exposure, level):
    with pytest.raises(ValueError, match="no rate of"):
        fleet.rate(k, exposure, level)


@pytest.mark.parametrize("formula", [fleet.ettr, fleet.ettr_exact])
def test_an_interval_must_be_positive(formula):
    with pytest.raises(ValueError, match="positive"):
        formula(10, 1e-3, interval_min=0, restart_min=5)


@settings(max_examples=100, deadline=None)
@given(st.floats(1, 4000), st.floats(1e-4, 2e-2), st.floats(1, 120), st.floats(0, 20), st.floats(0, 5))
def test_the_closed_form_is_near_the_exact_one_where_it_is_valid(nodes, rate, interval, restart, write):
    parts = {"interval_min": interval, "restart_min": restart, "write_min": write}
    closed, exact = fleet.ettr(nodes, rate, **parts), fleet.ettr_exact(nodes, rate, **parts)
    assert 0 <= exact <= 1
    if closed.valid and write < interval / 20:
        assert abs(closed.value - exact) < 0.06


def test_exact_ettr_at_the_limits():
    assert fleet.ettr_exact(10, 0, interval_min=60, restart_min=5, write_min=3) == pytest.approx(60 / 63)
    assert fleet.ettr_exact(1e9, 1, interval_min=60, restart_min=5) == 0.0
    assert fleet.optimal_interval_min(10, 0, 1) == math.inf


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 60), st.integers(0, 60), st.floats(0.001, 0.999))
def test_binomial_tail_is_the_sum(k, n, p):
    total = math.fsum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(max(k, 0), n + 1))
    assert fleet.binomial_tail(k, n, p) == pytest.approx(min(total, 1), rel=1e-9, abs=1e-12)


def test_binomial_tail_at_the_limits():
    assert fleet.binomial_tail(3, 5, 0) == 0 and fleet.binomial_tail(3, 5, 1) == 1
    assert fleet.binomial_tail(300, 1_000_000, 1e-5) < 1e-200


def test_false_discovery_keeps_order_and_never_lowers():
    p = [0.01, 0.04, 0.03, 0.005, 1.0]
    q = fleet.false_discovery(p)
    assert q == pytest.approx([0.025, 0.05, 0.05, 0.025, 1.0])
    assert fleet.false_discovery([]) == []
    assert all(a >= b for a, b in zip(q, p, strict=True))
    ordered = [q[i] for i in sorted(range(len(p)), key=p.__getitem__)]
    assert all(a <= b for a, b in itertools.pairwise(ordered))
