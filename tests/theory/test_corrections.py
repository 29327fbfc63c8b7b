"""V4: exact moments against all groups by brute force, and the weights against the objectives' own."""

from itertools import product

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from simlab.models.tabular import enumerate_sequences
from simlab.objectives import SUFFIXES, TokenBatch
from simlab.theory import corrections
from simlab.theory.budget import budget, effective_fraction, effective_fraction_of_chain
from simlab.theory.expectation import PolicyPair, noisy_pair, random_logits, random_rewards
from simlab.theory.groups import ADVANTAGES, group_gradient_moments
from tests.theory.strategies import pairs

OBJECTIVE_NAMES = {
    "token TIS": "tis",
    "token MIS": "mis",
    "sequence TIS": "seq_tis",
    "sequence MIS": "seq_mis",
    "IcePop": "icepop",
}


@pytest.mark.parametrize("name", ADVANTAGES)
@pytest.mark.parametrize("correction", ["none", "token TIS", "sequence IS"])
@pytest.mark.parametrize("size", [2, 3])
def test_moments_against_all_groups(name, correction, size):
    space = enumerate_sequences(2, 2)
    pair = noisy_pair(space, random_logits(space, 0), 0.5)
    rewards = np.array([0.0, 1.0, 1.0, 0.0])
    weights = corrections.CORRECTIONS[correction](pair)
    mean, variance = group_gradient_moments(pair, weights, rewards, ADVANTAGES[name], size)
    first, second = np.zeros(space.table_shape), 0.0
    each = [pair.gradient(np.eye(4)[i][:, None] * weights) for i in range(4)]
    for chosen in product(range(4), repeat=size):
        chance = np.prod(pair.law_infer[list(chosen)])
        k = np.float64(rewards[list(chosen)].sum())
        gradient = sum(ADVANTAGES[name](rewards[i], k, size) * each[i] for i in chosen) / size
        first += chance * gradient
        second += chance * (gradient**2).sum()
    np.testing.assert_allclose(mean, first, rtol=0, atol=1e-14)
    assert variance == pytest.approx(second - (first**2).sum(), abs=1e-13)


@pytest.mark.parametrize(("ours", "theirs"), OBJECTIVE_NAMES.items())
def test_weights_are_those_of_the_objectives(ours, theirs):
    space = enumerate_sequences(3, 3, end=0)
    pair = noisy_pair(space, random_logits(space, 0), 1.0)
    batch = TokenBatch(
        logp=jnp.asarray(pair.logp_train, jnp.float32),
        logp_train=jnp.asarray(pair.logp_train, jnp.float32),
        logp_infer=jnp.asarray(pair.logp_infer, jnp.float32),
        rewards=jnp.zeros(len(space.tokens)),
        mask=jnp.asarray(space.mask),
        group_size=1,
    )
    theirs = np.asarray(SUFFIXES[theirs].stage(batch, jnp.ones(space.mask.shape)), np.float64)
    expected = corrections.CORRECTIONS[ours](pair)
    # Log-probabilities in float32 (up to 20, error 2e-6) and an exponential: 1e-5 relative.
    np.testing.assert_allclose(theirs[space.mask], expected[space.mask], rtol=1e-5)


@given(pairs())
def test_sequence_weights_are_unbiased_and_equal_engines_need_no_correction(pair):
    rewards = random_rewards(pair.space, 1)
    same = PolicyPair(pair.space, pair.train, pair.train)
    target = pair.gradient(pair.law_train * rewards)
    weights = corrections.CORRECTIONS["sequence IS"](pair)
    mean = pair.gradient((pair.law_infer * rewards)[:, None] * weights)
    np.testing.assert_allclose(mean, target, rtol=0, atol=1e-9)
    for correction in corrections.CORRECTIONS.values():
        np.testing.assert_array_equal(correction(same)[pair.space.mask], 1.0)


def test_rloo_target_is_the_policy_gradient():
    space = enumerate_sequences(3, 2)
    pair = noisy_pair(space, random_logits(space, 0), 0.0)
    rewards = random_rewards(space, 0)
    mean, _ = group_gradient_moments(pair, corrections.none(pair), rewards, ADVANTAGES["rloo"], 5)
    np.testing.assert_allclose(mean, pair.gradient(pair.law_train * rewards), rtol=0, atol=1e-14)


def test_trade_off_at_equal_mismatch():
    space = enumerate_sequences(3, 6)
    logits, rewards = random_logits(space, 0), random_rewards(space, 0)
    pair = corrections.dose_for(0.3, lambda dose: noisy_pair(space, logits, dose))
    assert pair.rho_std == pytest.approx(0.3, rel=1e-9)
    found = corrections.qualities(pair, rewards, 16)
    assert found["sequence IS"].bias < 1e-12
    assert found["sequence TIS"].bias < found["token TIS"].bias < found["none"].bias
    assert found["sequence TIS"].std < found["sequence IS"].std
    assert found["none"].mse(1e9) == pytest.approx(found["none"].bias ** 2)


def test_no_sequence_weight_beats_the_oracle_bound():
    space = enumerate_sequences(3, 3)
    rewards = random_rewards(space, 0)
    pair = noisy_pair(space, random_logits(space, 0), 0.7)
    values = rewards - float(pair.law_train @ rewards)
    target = pair.gradient(pair.law_train * values)
    scale = (target**2).sum()
    n = 100
    bound = corrections.best_mse(pair, rewards, n)
    from simlab.models.tabular import sequence_scores

    v = values[:, None] * sequence_scores(space, pair.train)
    rng = np.random.default_rng(0)
    rho = np.exp(pair.log_rho.sum(1))

    def uncentered(w):
        error = (pair.law_infer * w) @ v - target.ravel()
        return (error @ error + (pair.law_infer * w**2) @ (v**2).sum(1) / n) / scale

    for weights in (rho, np.ones(27), np.minimum(rho, 2), *(rho * np.exp(rng.normal(size=(50, 27))))):
        assert uncentered(weights) >= bound
    # And the weights of the derivation reach it.
    norms = (v**2).sum(1)
    unit = v / np.sqrt(np.where(norms > 0, norms, 1))[:, None]
    second = unit.T @ (pair.law_infer[:, None] * unit)
    left = np.linalg.solve(np.eye(len(second)) + n * second, target.ravel())
    best = n * (v @ left) / np.where(norms > 0, norms, 1)
    assert uncentered(best) == pytest.approx(bound, rel=1e-9)


def test_effective_fraction_by_enumeration_transfer_matrix_and_sampling():
    space = enumerate_sequences(3, 5, memory=1)
    pair = noisy_pair(space, random_logits(space, 0), 0.5)
    exact = effective_fraction(pair)
    assert effective_fraction_of_chain(pair, 5) == pytest.approx(exact, rel=1e-12)
    assert effective_fraction_of_chain(pair, 1) == pytest.approx(
        1 / (pair.train[0] ** 2 / pair.infer[0]).sum(), rel=1e-12
    )


def test_budget_is_exact_when_all_contexts_are_one():
    space = enumerate_sequences(3, 7, memory=0)
    pair = noisy_pair(space, random_logits(space, 0), 0.3)
    found = budget(pair.rho_std, 7)
    assert found.ess == pytest.approx(effective_fraction(pair), rel=1e-10)
    # The rest is the normal approximation: of the right size.
    absolute = float(pair.law_infer @ np.abs(pair.log_rho.sum(1)))
    assert found.log_ppl_abs_diff == pytest.approx(absolute, rel=0.2)


def test_budget_inverts_itself_and_knows_zero():
    found = budget(0.01, 4096)
    assert budget(found.rho_std_for_half_ess, 4096).ess == pytest.approx(0.5)
    assert budget(0.01, round(found.length_at_half_ess)).ess == pytest.approx(0.5, rel=1e-3)
    none = budget(0.0, 10)
    assert (none.ess, none.log_ppl_abs_diff, none.masked_above_2) == (1.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="rho_std must be >= 0"):
        budget(-1.0, 10)


def test_folded_normal_against_sampling():
    # 1e6 draws of a normal of std s: the mean of |x| has standard error below s / 1000.
    spread = np.sqrt(50 * np.log1p(0.04))
    draws = np.random.default_rng(0).normal(-(spread**2) / 2, spread, size=1_000_000)
    found = budget(0.2, 50)
    assert found.log_ppl_abs_diff == pytest.approx(np.abs(draws).mean(), abs=5e-3 * spread)
    assert found.masked_above_2 == pytest.approx((draws > np.log(2)).mean(), abs=2.5e-3)
    assert found.median_sequence_ratio == pytest.approx(np.exp(np.median(draws)), rel=1e-2)
