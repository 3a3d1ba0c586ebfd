"""Formulas of fleet reliability: rates with exact intervals, MTTF, ETTR, checkpoint intervals, suspicious nodes.

Pure functions of plain numbers, standard library only, so that every figure of the report can be checked by hand. Each
names its source and its validity; a value outside its validity is marked, never silently printed. The chi-square and
gamma quantiles are written here because scipy would triple the size of the installation for one function.

Sources: Meta RSC = Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning Research Clusters", HPCA
2025, arXiv 2410.21680. Garwood = F. Garwood, "Fiducial limits for the Poisson distribution", Biometrika 1936. Daly =
J. Daly, "A higher order estimate of the optimum checkpoint interval", FGCS 2006. BH = Benjamini and Hochberg 1995.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.90
"""Confidence level of every interval unless another is asked for: the level of the published figures."""
MAX_LOSS = 0.25
"""Share of time lost beyond which the closed form of ETTR is not valid: it drops terms of second order in the loss."""
_MINUTES_PER_DAY = 1440.0
_TINY = 1e-300


@dataclass(frozen=True, slots=True)
class Rate:
    """k events over an exposure, with its interval. The unit is events per unit of exposure."""

    k: int
    exposure: float
    value: float
    lo: float
    """Lower limit; 0 for k = 0."""
    hi: float


def rate(k: int, exposure: float, level: float = LEVEL) -> Rate:
    """Exact (Garwood) interval of a Poisson rate, time-censored: G^-1(a/2; k)/T to G^-1(1 - a/2; k + 1)/T.

    Conservative: covers with at least `level`. Raises ValueError for a negative count, an exposure that is not
    positive, or a level outside (0, 1).
    """
    if k < 0 or not exposure > 0 or not 0 < level < 1:
        raise ValueError(f"no rate of {k} events over {exposure} at level {level}")
    tail = (1 - level) / 2
    lo = gamma_quantile(tail, k) if k else 0.0
    hi = gamma_quantile(1 - tail, k + 1)
    return Rate(k, exposure, k / exposure, lo / exposure, hi / exposure)


def mttf_hours(nodes: float, per_node_day: float) -> float:
    """Mean time to failure of a job on `nodes` nodes, hours: 24 / (N r_f) (Meta RSC). Infinite for a rate of 0.

    Valid where failures of nodes are independent and their rate is constant (exponential lifetimes).
    """
    return 24.0 / (nodes * per_node_day) if nodes * per_node_day > 0 else math.inf


@dataclass(frozen=True, slots=True)
class Ettr:
    """Expected effective-training-time ratio: productive time over wall time."""

    value: float
    loss: float
    """L (u0 + dt/2): expected share of time lost to failures, first order."""
    valid: bool
    """False where `loss` exceeds MAX_LOSS: the closed form is then too pessimistic; use `ettr_exact`."""


def ettr(
    nodes: float,
    per_node_day: float,
    *,
    interval_min: float,
    restart_min: float,
    write_min: float = 0.0,
    queue_min: float = 0.0,
) -> Ettr:
    """The closed form of Meta RSC: (1 - L (u0 + dt/2)) / ((1 + w/dt) (1 + L q)), L = N r_f.

    `interval_min` dt between checkpoints, `restart_min` u0, `write_min` w that a checkpoint stops training, `queue_min`
    q waited per resubmission (0 gives the published second version). Minutes; `per_node_day` failures per node-day.
    Raises ValueError if the interval is not positive.
    """
    if not interval_min > 0:
        raise ValueError("the checkpoint interval must be positive")
    per_minute = nodes * per_node_day / _MINUTES_PER_DAY
    loss = per_minute * (restart_min + interval_min / 2)
    value = (1 - loss) / ((1 + write_min / interval_min) * (1 + per_minute * queue_min))
    return Ettr(max(0.0, value), loss, loss <= MAX_LOSS)


def ettr_exact(
    nodes: float,
    per_node_day: float,
    *,
    interval_min: float,
    restart_min: float,
    write_min: float = 0.0,
    queue_min: float = 0.0,
) -> float:
    """ETTR with exponential failures that hit restarts too (Daly): dt / ((e^(L(dt + w)) - 1) (e^(L u0)/L + q)).

    Parameters as for `ettr`; valid for any loss. Raises ValueError if the interval is not positive.
    """
    if not interval_min > 0:
        raise ValueError("the checkpoint interval must be positive")
    per_minute = nodes * per_node_day / _MINUTES_PER_DAY
    if per_minute == 0:
        return interval_min / (interval_min + write_min)
    try:
        segment = math.expm1(per_minute * (interval_min + write_min))
        return interval_min / (segment * (math.exp(per_minute * restart_min) / per_minute + queue_min))
    except OverflowError:
        return 0.0


def optimal_interval_min(nodes: float, per_node_day: float, write_min: float) -> float:
    """Checkpoint interval that loses least, minutes: sqrt(2 w / (N r_f)) (Young 1974; first order of Daly).

    Valid while it is short against the MTTF. Infinite for a rate of 0.
    """
    per_minute = nodes * per_node_day / _MINUTES_PER_DAY
    return math.sqrt(2 * write_min / per_minute) if per_minute > 0 else math.inf


def binomial_tail(k: int, n: int, p: float) -> float:
    """P(X >= k) for X binomial(n, p), summed from the first term on in log space. 1 for k <= 0, 0 for k > n."""
    if k <= 0:
        return 1.0
    if k > n or p <= 0:
        return 0.0
    if p >= 1:
        return 1.0
    log_term = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    log_term += k * math.log(p) + (n - k) * math.log1p(-p)
    odds = p / (1 - p)
    term, total = 1.0, 1.0
    for i in range(k, n):
        term *= (n - i) / (i + 1) * odds
        total += term
        if term < total * 1e-17 and (n - i) * odds < i + 1:
            break
    return min(1.0, math.exp(log_term) * total)


def false_discovery(p_values: Sequence[float]) -> list[float]:
    """BH-adjusted p-values (q-values), in the order given.

    Naming those with q <= a keeps the expected share of wrongly named at a, for independent or positively dependent
    tests. Counts sharing one total are slightly negatively dependent, which BH tolerates in practice.
    """
    count = len(p_values)
    adjusted = [1.0] * count
    least = 1.0
    ascending = sorted(range(count), key=lambda i: p_values[i])
    for rank in range(count, 0, -1):
        place = ascending[rank - 1]
        least = min(least, p_values[place] * count / rank)
        adjusted[place] = least
    return adjusted


def gamma_quantile(p: float, shape: float) -> float:
    """x with P(Gamma(shape, 1) <= x) = p, by bisection on the regularised incomplete gamma function to 1e-12 relative.

    For whole shapes it is half of the chi-square quantile with 2 shape degrees of freedom.
    """
    if not 0 < p < 1 or not shape > 0:
        raise ValueError(f"no quantile {p} of a gamma distribution of shape {shape}")
    lo, hi = 0.0, shape + 10 * math.sqrt(shape) + 50
    while _gamma_cdf(hi, shape) < p:
        lo, hi = hi, hi * 2
    while hi - lo > 1e-12 * hi:
        middle = (lo + hi) / 2
        if middle in (lo, hi):
            break
        if _gamma_cdf(middle, shape) < p:
            lo = middle
        else:
            hi = middle
    return (lo + hi) / 2


def _gamma_cdf(x: float, shape: float) -> float:
    """Regularised lower incomplete gamma: DLMF 8.7.1, a series, below the mean; 8.9.2, a continued fraction, above."""
    if x <= 0:
        return 0.0
    front = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    if x < shape + 1:
        term = total = 1.0 / shape
        n = shape
        while term > total * 1e-17:
            n += 1
            term *= x / n
            total += term
        return front * total
    # Lentz's method
    b = x + 1 - shape
    c, d = 1 / _TINY, 1 / b
    h, i = d, 0
    while True:
        i += 1
        a = -i * (i - shape)
        b += 2
        d = 1 / _nonzero(a * d + b)
        c = _nonzero(b + a / c)
        h *= d * c
        if abs(d * c - 1) < 1e-16:
            return 1 - front * h


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
