"""lr: L8, L9, L10."""

from functools import cache

import numpy as np

from simlab.engines import ENGINE_PAIRS
from simlab.models.tabular import enumerate_sequences
from simlab.theory.bounds import (
    Bound,
    Progress,
    average_progress,
    gradient_error,
    gradient_error_linear,
    gradient_error_of_proof,
    log_slope,
    occupancy_drift,
    worst_rewards,
)
from simlab.theory.engine_pairs import pair_rows
from simlab.theory.expectation import PolicyPair, noisy_pair, random_logits, random_rewards, softmax
from simlab.theory.residual import Residual

LENGTHS = (1, 2, 4, 6, 8)
NOISE_STD = 0.1


@cache
def worst_case(length: int, memory: int | None) -> tuple[Bound, Bound]:
    """Compare the error under the rewards that maximize it with both bounds."""
    space = enumerate_sequences(3, length, memory=memory)
    pair = noisy_pair(space, random_logits(space, 0), NOISE_STD)
    rewards = worst_rewards(pair)
    return gradient_error(pair, rewards), gradient_error_linear(pair, rewards)


def quadratic_bound() -> Residual:
    """Check the printed bound for all horizons and ways of sharing contexts."""
    bounds = [worst_case(length, memory)[0] for memory in (None, 1, 0) for length in LENGTHS]
    tightness = max(bound.tightness for bound in bounds)
    at_longest = max(worst_case(LENGTHS[-1], memory)[0].tightness for memory in (None, 1, 0))
    return Residual.of_bound(
        tightness,
        f"error / bound at worst rewards: {tightness:.3f} at T = 1, {at_longest:.4f} at T = {LENGTHS[-1]}",
    )


def growth() -> Residual:
    """Check the exponent of the true error in T: at most one here, two in the bound."""
    exponents = {}
    for name, memory in (("prefix", None), ("chain", 1), ("one context", 0)):
        values = [worst_case(length, memory)[0].value for length in LENGTHS[1:]]
        exponents[name] = log_slope(np.array(LENGTHS[1:]), np.array(values))
    largest = max(exponents.values())
    listed = ", ".join(f"{name} {value:.2f}" for name, value in exponents.items())
    return Residual(abs(largest - 2), abs(largest - 2) < 0.2, f"exponent of T at worst rewards: {listed}")


def linear_bound() -> Residual:
    """Check our linear bound, and its tightness if all tokens share one context."""
    bounds = {
        memory: [worst_case(length, memory)[1].tightness for length in LENGTHS] for memory in (None, 1, 0)
    }
    tightness = max(max(row) for row in bounds.values())
    return Residual.of_bound(
        tightness,
        f"error / bound at T = {LENGTHS[-1]}: one context {bounds[0][-1]:.3f}, chain {bounds[1][-1]:.3f}, "
        f"prefixes {bounds[None][-1]:.3f}",
    )


@cache
def pairs_against_length() -> dict[str, list[PolicyPair]]:
    """Return all pairs of engines that disagree on one policy, truncated to T = 1..6.

    Contexts are numbered position by position, so a shorter policy is the first rows of a longer one.
    """
    spaces = [enumerate_sequences(3, length) for length in range(1, 7)]
    logits = random_logits(spaces[-1], 0)
    by_name = {}
    for name, pair in ENGINE_PAIRS.items():
        rows = pair_rows(logits, name) if pair.train is not pair.infer else (logits, logits)
        # Rounding absorbs the order of summation: some pairs of different engines are bitwise identical.
        if not np.array_equal(*rows):
            by_name[name] = [
                PolicyPair(space, *(side[: space.table_shape[0]] for side in rows)) for space in spaces
            ]
    return by_name


def engine_gradient_error() -> Residual:
    """Check bound and exponent for every engine pair, and the bound for the proof's reading of Eq. 3."""
    tightness, exponents, proof = {}, {}, []
    for name, pairs in pairs_against_length().items():
        rewards = [worst_rewards(pair) for pair in pairs]
        bounds = [gradient_error(*case) for case in zip(pairs, rewards, strict=True)]
        # A rounding engine has no slopes of its own; straight through they are one.
        proof += [
            gradient_error_of_proof(*case, np.ones(case[0].train.shape)).tightness
            for case in zip(pairs[1:], rewards[1:], strict=True)
        ]
        tightness[name] = max(bound.tightness for bound in bounds[1:])
        exponents[name] = log_slope(np.arange(2, 7), np.array([bound.value for bound in bounds[1:]]))
    worst = max(tightness, key=lambda name: tightness[name])
    return Residual.of_bound(
        tightness[worst],
        f"{len(tightness)} pairs, T = 2..6: error / bound at most {tightness[worst]:.3f} ({worst}); "
        f"exponents of T {min(exponents.values()):.2f} to {max(exponents.values()):.2f}; with log pi_infer "
        f"differentiated straight through at most {max(proof):.3f}",
    )


def engine_drift() -> Residual:
    """Measure the occupancy drift for every engine pair, and its exponent in t."""
    tightness, exponents = {}, []
    for name, pairs in pairs_against_length().items():
        bounds = occupancy_drift(pairs[-1])[1:]
        tightness[name] = max(bound.tightness for bound in bounds)
        times = np.arange(1, len(bounds) + 1)
        exponents.append(log_slope(times, np.array([bound.value for bound in bounds])))
    worst = max(tightness, key=lambda name: tightness[name])
    return Residual.of_bound(
        tightness[worst],
        f"{len(tightness)} pairs: drift / bound from {min(tightness.values()):.3f} to {tightness[worst]:.3f} "
        f"({worst}); exponents of t {min(exponents):.2f} to {max(exponents):.2f}",
    )


def bound_of_proof() -> Residual:
    """Check that, with log pi_infer differentiated, small drift with rough slopes violates the bound."""
    space = enumerate_sequences(3, 2)
    logits = random_logits(space, 0)
    size, frequency = 1e-3, 1e4
    infer = softmax(logits + size * np.sin(frequency * logits))
    slopes = 1 + size * frequency * np.cos(frequency * logits)
    pair = PolicyPair(space, softmax(logits), infer)
    rewards = random_rewards(space, 0)
    proof = gradient_error_of_proof(pair, rewards, slopes)
    used = gradient_error(pair, rewards)
    return Residual.of_bound(
        proof.tightness,
        f"logits + {size:g} sin({frequency:g} z): error / bound {proof.tightness:.3g} with log pi_infer, "
        f"{used.tightness:.3g} with log pi_train (Eq. 3)",
    )


def drift_of_states() -> Residual:
    """Check the occupancy drift over prefixes, for all times."""
    space = enumerate_sequences(4, 7)
    bounds = occupancy_drift(noisy_pair(space, random_logits(space, 0), NOISE_STD))[1:]
    tightness = [bound.tightness for bound in bounds]
    return Residual.of_bound(
        max(tightness),
        f"drift / bound from {tightness[0]:.3f} at t = 1 to {tightness[-1]:.3f} at t = {len(bounds)}",
    )


ETAS = np.geomspace(1e-3, 1.0, 7)


def steps_of_each_size() -> list[Progress]:
    """Return one real stochastic step, averaged over all samples, for step sizes over three decades."""
    space = enumerate_sequences(3, 3)
    logits, rewards = random_logits(space, 0), random_rewards(space, 0)
    pair = noisy_pair(space, logits, 0.3)
    return [average_progress(pair, logits, rewards, eta) for eta in ETAS]


def progress() -> Residual:
    """Compare expected progress with its bound."""
    steps = steps_of_each_size()
    excess, small = max(step.lower_bound - step.change for step in steps), steps[0]
    return Residual(
        max(0.0, excess),
        excess <= 0,
        f"at eta = 0.001 change {small.change:.3g}, bound {small.lower_bound:.3g} "
        f"(penalty {small.noise_penalty:.3g})",
    )


def exponents() -> Residual:
    """Check the exponents of eta in true progress, bias and noise (two smallest steps): 1, 1 and 2."""
    steps = steps_of_each_size()[:2]
    terms = np.array([(step.true_progress, step.bias_effect, step.noise_penalty) for step in steps])
    slopes = [log_slope(ETAS[:2], term) for term in terms.T]
    apart = float(np.abs(np.array(slopes) - (1, 1, 2)).max())
    return Residual(apart, apart <= 0.05, "exponents " + ", ".join(f"{slope:.3f}" for slope in slopes))
