"""Compare an objective with what a framework gave for the same batch, to float32 round-off.

How much round-off: both programs compute a coefficient as a product of some twenty correctly or nearly
correctly rounded factors (FACTORS; exp is within 2 ulp). Three of them carry more error and are bounded from
the batch: the advantage (a difference of rewards over their spread), a ratio whose exponent is a sum over the
sequence, and, in the value, the sum over all tokens, whose absolute terms the golden files hold as
`magnitude`. A sum of n terms has an error of at most n * EPS * sum |terms|; two programs differ by at most
twice the bound.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import numpy as np

from simlab.objectives import (
    Objective,
    TokenBatch,
    objective_value,
    prepare_batch,
    rollout_terms,
    token_coefficients,
)
from simlab.objectives.advantages import Gae, reward, whiten_rewards
from simlab.objectives.corrections import sequence_log_rho
from simlab.objectives.divergences import rollout_logp
from simlab.objectives.ratios import GeometricMean, LogLikelihood, SoftGate, geometric_ratio
from simlab.objectives.token_baseline import OptimalTokenBaseline
from simlab.objectives.weighted_likelihood import Dro, Vespo

EPS = 2.0**-24
TINY = float(np.finfo(np.float32).tiny)
FACTORS = 20
GROUP_SIZE = 4


@dataclass(frozen=True)
class Golden:
    """What the framework gave: value [], coefficients [B, T], sum of the absolute terms of the value []."""

    value: np.ndarray
    coefficients: np.ndarray
    magnitude: np.ndarray


def batch_from(arrays, label: str) -> TokenBatch:
    """The batch called `label` of a golden file."""
    names = ["logp", "logp_train", "logp_infer", "rewards", "mask", "values", "sum_squared_probabilities"]
    return TokenBatch(**{name: arrays[f"{label}/{name}"] for name in names}, group_size=GROUP_SIZE)


def golden_from(arrays, label: str, name: str) -> Golden:
    """The answer for variant `name` on the batch called `label`."""
    row = list(arrays["names"]).index(name)
    return Golden(*(arrays[f"{label}/{part}"][row] for part in ("value", "coefficients", "magnitude")))


@dataclass(frozen=True)
class Case:
    """One comparison, with differences allowed in the coefficients beside round-off.

    `floor` (a number or [B, 1]) is in units of advantage times aggregation, `absolute` in those of the
    coefficients.
    """

    batch: TokenBatch
    golden: Golden
    floor: float | np.ndarray = 0.0
    absolute: float = 0.0


def assert_equal_to_round_off(
    objective: Objective, cases: dict[str, Case], skip: tuple[str, ...] = ()
) -> None:
    """Value and coefficients agree in every case but those to `skip`; an error names the case."""
    batches = [case.batch for case in cases.values()]
    for (label, case), value, coefficients, advantages in zip(
        cases.items(), *answers(objective, batches), strict=True
    ):
        if label in skip:
            continue
        relative = relative_error(objective, case.batch, advantages)
        # XLA flushes subnormal numbers to zero; torch may keep them.
        allowed = 2 * relative * np.abs(case.golden.coefficients) + TINY + case.absolute
        allowed_value = 2 * (relative.max() + case.batch.logp.size * EPS) * case.golden.magnitude
        floor = case.floor + gate_error(objective)
        floor = floor + cancellation_error(objective, case.batch, advantages, relative)
        if np.any(floor):
            absolute = floor * np.abs(np.asarray(token_coefficients(without_ratio(objective), case.batch)))
            allowed, allowed_value = allowed + absolute, allowed_value + absolute.sum()
        worst(coefficients, case.golden.coefficients, allowed, f"{label}: coefficient")
        worst(value, case.golden.value, np.asarray(allowed_value), f"{label}: value")


def answers(objective: Objective, batches: list[TokenBatch]) -> list[np.ndarray]:
    """Values, coefficients and advantages of several batches in one pass."""

    def one(batch: TokenBatch) -> tuple[jax.Array, jax.Array, jax.Array]:
        def value(logp: jax.Array) -> jax.Array:
            return objective_value(objective, replace(batch, logp=logp))

        return *jax.value_and_grad(value)(batch.logp), rollout_terms(
            objective, prepare_batch(batch)
        ).advantages

    stacked = jax.tree.map(lambda *rows: np.stack(rows), *batches)
    return [np.asarray(column) for column in jax.vmap(one)(stacked)]


def worst(actual: np.ndarray, expected: np.ndarray, allowed: np.ndarray, what: str) -> None:
    """Fail with the entry that exceeds its bound the most."""
    assert np.isfinite(actual).all(), f"{what}: not finite"
    excess = np.abs(actual.astype(np.float64) - expected) - allowed
    if (excess > 0).any():
        where = np.unravel_index(np.argmax(excess), excess.shape)
        raise AssertionError(
            f"{(excess > 0).sum()} of {excess.size} {what}s differ; the worst, at {list(map(int, where))}, "
            f"is {actual[where]} instead of {expected[where]}, {excess[where]} beyond its bound"
        )


def without_ratio(objective: Objective) -> Objective:
    """The objective with coefficient A x aggregation: no ratio, no clip, no weights."""
    return replace(objective, surrogate=LogLikelihood(), correction=None, transform=None)


def gate_error(objective: Objective) -> float:
    """SAPO's slope is r sigma (1 - sigma): 1 - sigma has an absolute error of EPS in each program.

    It matters until sigma rounds to one, at r of about 18; the factor 4 is SAPO's.
    """
    return 2 * 4 * 18 * EPS if isinstance(objective.surrogate, SoftGate) else 0.0


def cancellation_error(
    objective: Objective, batch: TokenBatch, advantages: np.ndarray, relative: np.ndarray
) -> np.ndarray | float:
    """DRO's slope is A - beta log r: where the terms cancel their errors remain, [B, T] in units of A."""
    if not isinstance(objective.surrogate, Dro):
        return 0.0
    largest_weight = 1.0 if objective.correction is None else np.max(objective.correction.correction_clip)
    log_r = np.abs(np.float64(batch.logp) - batch.logp_train)
    penalty = objective.surrogate.dro_beta * log_r / np.where(advantages == 0, np.inf, np.abs(advantages))
    return 2 * largest_weight * (relative + FACTORS * EPS * penalty)


def relative_error(objective: Objective, batch: TokenBatch, advantages: np.ndarray) -> np.ndarray:
    """Bound on the relative error of the coefficients in float32, [B, T]."""
    return FACTORS * EPS + advantage_error(objective, batch, advantages) + exponent_error(objective, batch)


def exponent_error(objective: Objective, batch: TokenBatch) -> np.ndarray:
    """Error of the exponents that are sums over a sequence: n EPS sum |log ratio|, [B, 1]."""
    mask = np.asarray(batch.mask) != 0
    surrogate, error = objective.surrogate, np.zeros((len(mask), 1))
    if getattr(surrogate, "ratio", None) is geometric_ratio or isinstance(surrogate, GeometricMean):
        error += _sum_error(batch.logp - batch.logp_train, mask) / np.maximum(mask.sum(1, keepdims=True), 1)
    if getattr(objective.correction, "log_rho", None) is sequence_log_rho:
        error += _sum_error(batch.logp_train - batch.logp_infer, mask)
    if isinstance(surrogate, Vespo):
        error += vespo_error(surrogate, batch, mask)
    if isinstance(surrogate, GeometricMean):
        # The mean of log weights, none of which is outside log(1e-10)..20.
        error += mask.shape[1] * EPS * 23
    return error


def vespo_error(surrogate: Vespo, batch: TokenBatch, mask: np.ndarray) -> np.ndarray:
    """Error of VESPO's exponent, lambda + k L - lambda e^L with L a sum over the sequence, [B, 1]."""
    log_r = np.where(mask, np.float64(batch.logp) - batch.logp_train, 0)
    log_rho = np.where(mask, np.minimum(np.float64(batch.logp_train) - batch.logp_infer, np.log(3)), 0)
    log_rho = np.maximum(log_rho, np.log(1e-8)) * (surrogate.anchor is rollout_logp)
    weight = np.clip((log_r + log_rho).sum(1, keepdims=True), np.log(1e-8), 20)
    summed = _sum_error(log_r, mask) + _sum_error(log_rho, mask)
    return (3 + 3 * np.exp(weight)) * (summed + 4 * EPS * (1 + np.abs(weight)))


def _sum_error(x, mask: np.ndarray) -> np.ndarray:
    return mask.shape[1] * EPS * np.where(mask, np.abs(x), 0).sum(1, keepdims=True)


def advantage_error(objective: Objective, batch: TokenBatch, advantages: np.ndarray) -> np.ndarray:
    """Relative error of the advantages, [B, T]: that of a mean of n numbers, over their spread.

    Zero advantages are exact (the groups of equal rewards in the goldens hold ones).
    """
    error = estimator_error(objective.advantage, prepare_batch(batch), advantages)
    return np.where(advantages == 0, 0, error / np.where(advantages == 0, 1, np.abs(advantages)))


def estimator_error(estimator: Callable, batch: TokenBatch, advantages: np.ndarray) -> np.ndarray:
    """Absolute error of an advantage estimator in float32, for a prepared batch."""
    rewards, mask = np.asarray(batch.rewards), np.asarray(batch.mask)
    if estimator is reward:
        return np.zeros_like(advantages)
    if estimator is whiten_rewards or isinstance(estimator, Gae):
        raw = np.broadcast_to(rewards[:, None], mask.shape)
        if isinstance(estimator, Gae):
            raw = np.asarray(estimator.compute_unwhitened(batch))
        return mask.sum() * EPS * (np.abs(raw[mask]).max() / raw[mask].std()) * (1 + np.abs(advantages))
    if isinstance(estimator, OptimalTokenBaseline):
        # A mean of rewards whose positive weights are sums of 1 - 2 q + sum q^2 >= (1 - q)^2.
        energy = 1 - 2 * np.exp(batch.logp_train) + np.asarray(batch.sum_squared_probabilities)
        error = mask.shape[1] * EPS * (4 / energy[mask].min() + FACTORS) * np.abs(rewards).max()
        return np.full(mask.shape, error)
    grouped = rewards.reshape(-1, batch.group_size)
    spread = np.where(grouped.std(1) > 0, np.minimum(grouped.std(1), 1), 1)
    scale = np.repeat(np.abs(grouped).max(1) / spread, batch.group_size)
    return 2 * (batch.group_size + 4) * EPS * scale[:, None] * (1 + np.abs(advantages))
