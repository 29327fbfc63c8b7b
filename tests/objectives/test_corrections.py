"""Correction weights against numpy in float64, and the quadrants of ACRL."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from simlab.objectives import OBJECTIVE_MODIFIERS, prepare_batch, resolve, rollout_terms
from simlab.objectives.corrections import Acrl, Truncated, geometric_log_rho
from tests.objectives.batches import batch_of, random_batch

LOG_RHO = np.log([[0.4, 1.5, 4.0], [0.9, 1.2, 6.0]])
MASK = np.array([[1, 1, 1], [1, 1, 0]])
# Products over the sequence: 2.4 and 1.08.
RHO, PRODUCT = np.exp(LOG_RHO), np.array([[2.4], [1.08]])


def weights(modifier, batch, **overrides):
    return np.asarray(
        rollout_terms(resolve(f"grpo+{modifier}", **overrides), prepare_batch(batch)).correction
    )


@pytest.mark.parametrize(
    ("modifier", "overrides", "expected"),
    [
        ("tis", {}, np.minimum(RHO, 2)),
        ("tis", {"correction_clip": 5.0}, np.minimum(RHO, 5)),
        ("tis", {"correction_clip": (0.5, 2.0)}, np.clip(RHO, 0.5, 2)),
        ("mis", {}, np.where(RHO <= 2, RHO, 0)),
        ("icepop", {}, np.where((RHO >= 0.5) & (RHO <= 5), RHO, 0)),
        ("seq_tis", {}, np.minimum(PRODUCT, 2) + 0 * RHO),
        ("seq_mis", {}, np.where(PRODUCT <= 2, PRODUCT, 0) + 0 * RHO),
    ],
)
def test_weights_of_rho(modifier, overrides, expected):
    batch = batch_of(np.zeros((2, 3)), [1, 0], 2, log_rho=LOG_RHO, mask=MASK)
    actual = weights(modifier, batch, **overrides)
    # Three logarithms are added and one exponential taken in float32.
    np.testing.assert_allclose(actual[MASK == 1], expected[MASK == 1], rtol=2e-6)


def test_geometric_level():
    batch = prepare_batch(batch_of(np.zeros((2, 3)), [1, 0], 2, log_rho=LOG_RHO, mask=MASK))
    expected = PRODUCT ** np.array([[1 / 3], [1 / 2]]) + 0 * RHO
    actual = np.asarray(Truncated(geometric_log_rho, 9.0)(batch, batch.logp))
    np.testing.assert_allclose(actual[MASK == 1], expected[MASK == 1], rtol=2e-6)


def test_log_rho_stops_at_twenty():
    batch = batch_of(np.zeros((1, 2)), [1], log_rho=[[100.0, -100.0]])
    np.testing.assert_allclose(
        weights("tis", batch, correction_clip=1e30), [[np.exp(20.0), np.exp(-20.0)]], rtol=1e-6
    )


def acrl_by_hand(batch, advantages, gamma=0.65, clip=3.0, reference=None, level="group"):
    """acrl Eq. 5-9 in float64, for sequences that all have tokens."""
    logp_train, logp_infer = (np.float64(x) for x in (batch.logp_train, batch.logp_infer))
    mask = np.asarray(batch.mask)
    d = np.where(mask, np.abs(np.exp(logp_train) - np.exp(logp_infer)), 0).sum(1) / mask.sum(1)
    x = d.mean() if reference is None else reference
    groups = d.reshape(-1, batch.group_size)
    y = {
        "sequence": d,
        "group": np.repeat(groups.mean(1), batch.group_size),
        "batch": np.full_like(d, d.mean()),
    }
    alpha = gamma * np.sign(advantages) * (1 - y[level] / x)[:, None]
    return np.minimum(np.exp(alpha * (logp_train - logp_infer)), clip)


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"acrl_level": "sequence"},
        {"acrl_level": "batch", "acrl_reference": 0.05},
        {"acrl_gamma": 1.7, "acrl_clip": 1.1, "acrl_reference": 0.2},
    ],
)
def test_acrl_is_its_formula(overrides):
    batch = random_batch(3)
    terms = rollout_terms(resolve("grpo+acrl", **overrides), prepare_batch(batch))
    arguments = {name.removeprefix("acrl_"): value for name, value in overrides.items()}
    expected = acrl_by_hand(batch, np.asarray(terms.advantages), **arguments)
    mask = np.asarray(batch.mask)
    np.testing.assert_allclose(np.asarray(terms.correction)[mask], expected[mask], rtol=5e-6)
    assert (expected[mask] > 1.01).any()


@pytest.mark.parametrize("too_large", [True, False])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("log_rho", [0.2, -0.2])
def test_acrl_quadrants(too_large, sign, log_rho):
    """acrl Sec. 4.2, Fig. 3, 5: with Y > X the weight exceeds one where the update closes the gap."""
    batch = prepare_batch(batch_of([[0.0]], [1.0], log_rho=[[log_rho]]))
    d = abs(np.exp(-1) - np.exp(-1 - log_rho))
    stage = Acrl(acrl_reference=d / 2 if too_large else d * 2)
    weight = stage(batch, jnp.float32([[sign]]))[0, 0]
    closes_the_gap = sign * log_rho < 0
    assert (weight > 1) == (closes_the_gap == too_large)


def test_acrl_reference_is_this_batch_by_default():
    """At level batch Y is X then, and nothing is corrected."""
    batch = random_batch(4)
    np.testing.assert_array_equal(weights("acrl", batch, acrl_level="batch"), 1)


def test_acrl_with_no_discrepancy_at_all():
    batch = random_batch(5, mismatch=0.0)
    for reference in (None, 0.0, 0.01):
        np.testing.assert_array_equal(weights("acrl", batch, acrl_reference=reference), 1)


def test_corrections_touch_neither_baseline_nor_denominator():
    batch = random_batch(6, mismatch=2.0)
    plain = rollout_terms(resolve("grpo"), prepare_batch(batch))
    for name, modifier in OBJECTIVE_MODIFIERS.items():
        if modifier.field == "correction":
            corrected = rollout_terms(resolve(f"grpo+{name}"), prepare_batch(batch))
            np.testing.assert_array_equal(corrected.advantages, plain.advantages)
            np.testing.assert_array_equal(corrected.mask, plain.mask)


def test_empty_responses_leave_the_discrepancies():
    batch = random_batch(7)
    batch = replace(batch, mask=batch.mask.at[1].set(False))
    rows = np.array([0, 2, 3])
    strength = Acrl(acrl_reference=0.1).strength(prepare_batch(batch))
    alone = replace(
        batch,
        **{
            name: getattr(batch, name)[rows]
            for name in ("logp", "logp_train", "logp_infer", "rewards", "mask")
        },
        group_size=3,
    )
    np.testing.assert_allclose(
        strength[0], Acrl(acrl_reference=0.1).strength(prepare_batch(alone))[0], rtol=1e-6
    )
