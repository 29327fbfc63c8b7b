"""Schedules against loops written to be read; those with a schedule_state under scan and vmap."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.training.schedules import (
    SCHEDULES,
    Constant,
    Cosine,
    Halving,
    LengthTriggered,
    LinearDecay,
    MismatchTriggered,
)
from tests.tolerances import assert_exact

rng = np.random.default_rng(0)


@jax.jit
def factors(schedule, series):
    """The factor at every step of a run whose metrics are `series`, and the schedule_state after it."""

    def step(schedule_state, inputs):
        number, value = inputs
        factor = schedule(number, schedule_state)
        return schedule.observe(
            schedule_state, number, {"response_length": value, "rms_log_rho": value, "std_rho": -value}
        ), factor

    schedule_state, found = jax.lax.scan(step, schedule.init(), (jnp.arange(len(series)), series))
    return found, schedule_state


@pytest.mark.parametrize(
    ("schedule", "points"),
    [
        (Constant(), {0: 1.0, 99: 1.0}),
        (Constant(lr_warmup_steps=4), {0: 0.25, 1: 0.5, 3: 1.0, 9: 1.0}),
        (LinearDecay(steps=10, min_lr_ratio=0.2), {0: 1.0, 5: 0.6, 10: 0.2, 50: 0.2}),
        (LinearDecay(steps=10, lr_warmup_steps=2), {0: 0.5, 2: 1.0, 6: 0.5, 10: 0.0}),
        (Cosine(steps=10, min_lr_ratio=0.2), {0: 1.0, 5: 0.6, 10: 0.2, 50: 0.2}),
        (Halving(period=10, lr_warmup_steps=2), {0: 0.5, 8: 1.0, 9: 0.5, 18: 0.5, 19: 0.25, 39: 0.1}),
    ],
)
def test_schedules_without_memory(schedule, points):
    for step, factor in points.items():
        assert np.isclose(jax.jit(lambda s, t: s(t))(schedule, jnp.int32(step)), factor, atol=1e-6)


@pytest.mark.parametrize(("period", "min_lr_ratio"), [(1, 0.1), (7, 0.1), (7, 0.0)])
def test_halving_is_the_algorithm_as_printed(period, min_lr_ratio):
    rate, expected = 1.0, []
    for t in range(1, 61):
        if t % period == 0:
            rate = max(rate / 2, min_lr_ratio)
        expected.append(rate)
    # Halving is exact, and `min_lr_ratio` is rounded once on both sides.
    found, _ = factors(Halving(period=period, min_lr_ratio=min_lr_ratio), jnp.zeros(60))
    assert_exact(found, np.float32(expected))


def length_triggered(lengths, rise, patience, delay, early, min_lr_ratio):
    """The same, with hindsight: find the surge first, then walk the schedule from where it is known."""
    level, above, known = np.median(lengths[:early]), 0, None
    for t in range(early, len(lengths)):
        above = above + 1 if lengths[t] > rise * level else 0
        if above == patience:
            known, surge = t, t + 1 - (patience - 1)
            break
    if known is None:
        return np.ones(len(lengths), np.float32)
    return np.float32(
        [
            1 if t <= known else max(0.5 ** int((t + 1) / np.float32(delay * surge)), min_lr_ratio)
            for t in range(len(lengths))
        ]
    )


@pytest.mark.parametrize("patience", [1, 3])
@pytest.mark.parametrize("surge_at", [8, 15, 30, 99])
def test_the_rate_falls_only_after_a_surge_of_the_length(surge_at, patience):
    lengths = 10 + rng.random(60).astype(np.float32)
    lengths[surge_at:] *= 3
    lengths[6] *= 3  # one long batch is no surge, unless patience is 1
    schedule = LengthTriggered(early=5, patience=patience, min_lr_ratio=0.1)
    found, schedule_state = factors(schedule, jnp.asarray(lengths))
    assert_exact(found, length_triggered(lengths, 2.0, patience, 1.8, 5, 0.1))
    if surge_at == 99 and patience == 3:
        assert np.isinf(schedule_state.surge)
        assert (np.asarray(found) == 1).all()
    else:
        assert found[-1] < 1


def test_a_gap_starts_the_patience_anew():
    lengths = np.array([10] * 5 + [30, 30, 10, 30, 30, 30] + [10] * 30, np.float32)
    _, schedule_state = factors(LengthTriggered(early=5, patience=3), jnp.asarray(lengths))
    assert schedule_state.surge == 9  # the ninth step, counted from one; what follows does not move it


def mismatch_triggered(levels, rise, early, smoothing, cooldown, min_lr_ratio):
    initial, factor, quiet, found = np.mean(levels[:early]), 1.0, 0, []
    smoothed = initial
    for t, level in enumerate(levels):
        found.append(factor)
        if t < early:
            continue
        smoothed = smoothing * smoothed + (1 - smoothing) * level
        if quiet == 0 and smoothed > rise * initial:
            factor, quiet = max(factor / 2, min_lr_ratio), cooldown
        else:
            quiet = max(quiet - 1, 0)
    return np.float32(found)


@pytest.mark.parametrize("cooldown", [0, 4])
def test_the_rate_halves_while_the_smoothed_mismatch_is_high(cooldown):
    levels = np.concatenate([np.full(12, 1.0), np.full(12, 5.0), np.full(30, 1.0)]).astype(np.float32)
    schedule = MismatchTriggered(early=6, smoothing=0.7, cooldown=cooldown, min_lr_ratio=0.01)
    found, _ = factors(schedule, jnp.asarray(levels))
    expected = mismatch_triggered(levels, 2.0, 6, 0.7, cooldown, 0.01)
    assert_exact(found, expected)
    assert expected[-1] < 0.5
    assert found[-1] == found[-10]  # calm again: no further halving, and none is taken back


def test_no_mismatch_never_rings_and_what_is_not_finite_does():
    schedule = MismatchTriggered(early=6)
    assert (np.asarray(factors(schedule, jnp.zeros(54))[0]) == 1).all()
    levels = np.ones(54, np.float32)
    levels[[2, 20]] = np.nan, np.inf
    found, schedule_state = factors(schedule, jnp.asarray(levels))
    assert_exact(found, np.float32([1] * 21 + [0.5] * 33))
    assert schedule_state.initial == schedule_state.smoothed == 1


def test_the_metric_is_chosen_by_name():
    found, schedule_state = factors(MismatchTriggered(early=6, metric="std_rho"), jnp.ones(54))
    assert schedule_state.initial == -1
    assert (np.asarray(found) < 1).any()
    with pytest.raises(ValueError, match="unknown step metric 'std_rh'; did you mean 'std_rho'"):
        factors(MismatchTriggered(metric="std_rh"), jnp.ones(54))


@pytest.mark.parametrize("name", SCHEDULES)
def test_numbers_are_data(name):
    made = SCHEDULES[name](lr_warmup_steps=3)
    series = jnp.asarray(np.linspace(1, 9, 60), jnp.float32)
    leaves, tree = jax.tree.flatten(made)
    scaled = [tree.unflatten([jnp.float32(k * leaf) for leaf in leaves]) for k in (0.5, 1.0)]
    together = jax.vmap(lambda s: factors(s, series)[0])(
        jax.tree.map(lambda *leaves: jnp.stack(leaves), *scaled)
    )
    for row, alone in zip(together, scaled, strict=True):
        # The cosine of a vector may come from another instruction than that of a scalar.
        np.testing.assert_allclose(row, factors(alone, series)[0], rtol=1e-6, atol=1e-7)
        assert ((np.asarray(row) >= 0) & (np.asarray(row) <= 1)).all()
