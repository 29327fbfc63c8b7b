"""Which tokens leave the loss, and what that does to baselines and denominators."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from simlab.objectives import get_objective, prepare_batch, resolve, rollout_terms
from simlab.objectives import rejection as levels
from simlab.objectives.rejection import DivergenceCap, OffPolicySequenceMask, RatioBand, Veto, k2, k3
from tests.objectives.batches import batch_of, coefficients_of, value_of

LOG_RHO = np.array([[0.0, 0.1, -0.1], [0.5, 0.0, 9.0], [-0.3, -0.3, -0.3]])
MASK = np.array([[1, 1, 1], [1, 1, 0], [1, 1, 1]], bool)
K = {"k1": -LOG_RHO, "k2": LOG_RHO**2 / 2, "k3": np.exp(LOG_RHO) - 1 - LOG_RHO}


def numpy_statistic(name, level):
    x = K[name]
    if level == "token":
        return x
    reduce = {"seq_sum": np.sum, "seq_mean": np.mean, "seq_max": np.max}[level]
    return np.array([[reduce(row[real])] * 3 for row, real in zip(x, MASK, strict=True)])


def the_batch(log_rho=LOG_RHO, mask=MASK):
    return prepare_batch(
        batch_of(np.zeros(log_rho.shape), np.arange(len(log_rho)), 1, log_rho=log_rho, mask=mask)
    )


@pytest.mark.parametrize("level", ["token", "seq_sum", "seq_mean", "seq_max"])
@pytest.mark.parametrize("name", ["k2", "k3"])
def test_caps(name, level):
    statistic = numpy_statistic(name, level)
    for bound in (0.01, 0.06, 0.11):
        stage = DivergenceCap({"k2": k2, "k3": k3}[name], getattr(levels, level), bound)
        np.testing.assert_array_equal(np.asarray(stage(the_batch()))[MASK], (statistic <= bound)[MASK])


@pytest.mark.parametrize("level", ["token", "seq_sum", "seq_mean"])
def test_bands_hold_the_inverse_of_rho_as_in_verl(level):
    statistic = np.exp(numpy_statistic("k1", level))
    for low, high in ((0.8, 1.05), (0.5, 1.32), (0.999, 1.5)):
        kept = RatioBand(getattr(levels, level), (low, high))(the_batch())
        np.testing.assert_array_equal(
            np.asarray(kept)[MASK], ((statistic >= low) & (statistic <= high))[MASK]
        )


def test_band_of_the_maximum_wants_every_token_inside():
    kept = RatioBand(levels.seq_max, (0.85, 1.2))(the_batch())
    np.testing.assert_array_equal(np.asarray(kept)[:, 0], [True, False, False])


def test_one_number_is_a_symmetric_band():
    batch = the_batch(np.log([[0.55, 0.45, 1.9, 2.1]]), np.ones((1, 4), bool))
    np.testing.assert_array_equal(RatioBand(levels.token, 2.0)(batch), [[True, False, True, False]])


def test_veto_drops_the_sequence_for_one_token():
    batch = the_batch(np.log([[1.0, 1e-5, 1.0], [1.0, 1e-3, 1e6]]), np.ones((2, 3), bool))
    np.testing.assert_array_equal(Veto()(batch), [[False] * 3, [True] * 3])


def test_opsm_drops_only_bad_sequences_that_drifted():
    # Mean of logp_train - logp: 0.1, 0.1, -0.1, 0.
    log_r = np.array([[-0.2, 0.0], [-0.2, 0.0], [0.2, 0.0], [0.0, 0.0]])
    batch = prepare_batch(batch_of(log_r, [0, 1, 0, 0], 4))
    advantages = jnp.broadcast_to(jnp.float32([-1, 1, -1, -1])[:, None], (4, 2))
    kept = OffPolicySequenceMask(0.05)(batch, advantages)
    np.testing.assert_array_equal(np.asarray(kept)[:, 0], [False, True, True, True])


# Group of four, rewards 1, 1, 0, 0: the engines disagree on the second and the fourth response.
DISAGREE = np.array([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0], [1.0, 1.0]])


def rejected_batch(rewards=(1, 1, 0, 0)):
    return batch_of(np.zeros((4, 2)), rewards, 4, log_rho=DISAGREE)


def test_rejected_tokens_leave_mask_and_denominator():
    coefficients = np.asarray(coefficients_of("grpo+k3_mask", rejected_batch(), advantage="reward"))
    # One of the two that stay has reward 1: mean over two sequences, then two tokens.
    np.testing.assert_array_equal(coefficients, [[0.25, 0.25], [0, 0], [0, 0], [0, 0]])


@pytest.mark.parametrize(
    ("baseline", "expected"), [("survivors", [1, 0, 0, 0]), ("all", [0.75, 0, 0, -0.25])]
)
def test_baseline(baseline, expected):
    """Rewards 1, 0, 0, 0 with the two middle responses rejected."""
    batch = batch_of(np.zeros((4, 2)), [1, 0, 0, 0], 4, log_rho=DISAGREE[[0, 1, 3, 2]])
    if baseline == "survivors":
        expected = [0.5, 0, 0, -0.5]
    terms = rollout_terms(
        resolve("grpo+k3_mask", advantage="grpo_no_std", baseline=baseline), prepare_batch(batch)
    )
    shown = np.where(terms.mask[:, 0], terms.advantages[:, 0], 0)
    np.testing.assert_array_equal(shown, expected)


def test_one_survivor_learns_nothing():
    batch = batch_of(np.zeros((4, 2)), [1, 0, 0, 0], 4, log_rho=[[0, 0], [1, 1], [1, 1], [1, 1]])
    assert (np.asarray(coefficients_of("grpo+geo_mask", batch)) == 0).all()
    assert value_of("grpo+geo_mask", batch) == 0


def test_empty_responses_are_not_rejected_ones():
    """A response without tokens keeps its place in the baseline, with and without a mask."""
    batch = rejected_batch()
    batch = replace(batch, mask=batch.mask.at[3].set(False), logp_infer=batch.logp_train)
    for name in ("grpo", "grpo+k3_mask"):
        terms = rollout_terms(resolve(name, advantage="grpo_no_std"), prepare_batch(batch))
        np.testing.assert_array_equal(np.asarray(terms.advantages)[:, 0], [0.5, 0.5, -0.5, -0.5])


def test_opsm_never_changes_a_baseline():
    batch = batch_of([[0.0], [-0.5]], [1, 0], 2)
    terms = rollout_terms(get_objective("grpo+opsm"), prepare_batch(batch))
    np.testing.assert_allclose(np.asarray(terms.advantages)[:, 0], [np.sqrt(0.5), -np.sqrt(0.5)], rtol=1e-5)
    assert coefficients_of("grpo+opsm", batch)[1, 0] == 0
