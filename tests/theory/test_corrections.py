"""V4: exact moments of every correction against its objective over all groups, bounds, and the budget."""

from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from simlab.models.tabular import enumerate_sequences, sequence_scores
from simlab.objectives import OBJECTIVE_MODIFIERS, OBJECTIVES, TokenBatch, token_coefficients
from simlab.theory import correction_moments as corrections
from simlab.theory.budget import budget, effective_fraction, effective_fraction_of_chain
from simlab.theory.checks import vexact_checks as vexact
from simlab.theory.counterparts import COUNTERPARTS
from simlab.theory.expectation import PolicyPair, noisy_pair, random_logits, random_rewards
from simlab.theory.group_moments import group_gradient_moments
from simlab.theory.groups import ADVANTAGES
from simlab.theory.recent_corrections import KEEPS, RECENT, mask_fractions, token_kl
from tests.theory.strategies import pairs
from tests.tolerances import assert_exact


@pytest.mark.parametrize("name", COUNTERPARTS)
def test_moments_are_those_of_the_objective_over_all_groups(name):
    pair = vexact.small_case(name)
    in_loss = (corrections.CORRECTIONS | RECENT)[COUNTERPARTS[name][0]](pair).in_loss
    assert (0 < in_loss.sum() < len(in_loss)) == (name in vexact.NOISE_OF_MASKS)
    # float32 coefficients: 1e-6 relative; ACRL's steps: second order in 1 / 32.
    tolerance = vexact.ACRL_MOMENTS if name == "acrl" else vexact.SINGLE_MOMENTS
    assert vexact.counterpart_residual(name) < tolerance


@pytest.mark.parametrize(("wrong", "name"), [("token IS", "tis"), ("none", "k3_mask"), ("none", "acrl")])
def test_the_moments_of_another_correction_differ(monkeypatch, wrong, name):
    monkeypatch.setitem(COUNTERPARTS, name, (wrong, COUNTERPARTS[name][1]))
    assert vexact.counterpart_residual(name) > 0.01


# m2_mask depends on the whole batch, the others do not weigh rho.
UNCOVERED = {"m2_mask", "rollout_kl", "score_centering"}
# Presets with the inference engine as anchor.
ANCHORED = {"dppo_tv", "dppo_kl", "ipo", "kpop", "drpo", "vespo", "m2po"}


def test_every_modifier_and_every_correction_is_covered():
    assert set(OBJECTIVE_MODIFIERS) == set(COUNTERPARTS) & set(OBJECTIVE_MODIFIERS) | UNCOVERED
    # The square root of the sequence weight is ours.
    covered = {correction for correction, _ in COUNTERPARTS.values()}
    assert covered == {*corrections.CORRECTIONS, *RECENT} - {"sequence IS^1/2"}


@pytest.mark.parametrize("name", sorted(set(OBJECTIVES) - ANCHORED - {"gspo_noise"}))
def test_presets_alone_do_not_see_the_mismatch(name):
    space = enumerate_sequences(3, 2)
    pair = noisy_pair(space, random_logits(space, 0), 1.0)
    train = jnp.asarray(pair.logp_train[:8], jnp.float32)
    batch = TokenBatch(
        logp=train,
        logp_train=train,
        logp_infer=jnp.asarray(pair.logp_infer[:8], jnp.float32),
        rewards=jnp.arange(8, dtype=jnp.float32) % 3,
        mask=jnp.ones(train.shape, bool),
        group_size=4,
        values=jnp.zeros(train.shape),
        key=jax.random.key(0),
    )
    found, blind = (token_coefficients(name, b) for b in (batch, replace(batch, logp_infer=train)))
    assert np.abs(found).max() > 0
    assert_exact(found, blind)


def test_acrl_steps_are_an_error_of_second_order():
    space = enumerate_sequences(3, 4)
    pair = noisy_pair(space, random_logits(space, 0), 0.3)
    rewards = random_rewards(space, 0)
    means = [
        group_gradient_moments(pair, corrections.acrl(bins=bins)(pair), rewards, ADVANTAGES["rloo"], 4)[0]
        for bins in (4, 8, 16)
    ]
    # Errors c h^2 at h, h/2, h/4: the differences are 12 and 3 parts; a quarter, with room.
    change = [np.linalg.norm(b - a) for a, b in pairwise(means)]
    assert change[1] < change[0] / 3
    assert change[1] < 1e-4 * np.linalg.norm(means[2])


def test_acrl_rejects_unknown_level_and_keeps_equal_engines():
    with pytest.raises(ValueError, match="group or sequence"):
        corrections.acrl("batch")
    space = enumerate_sequences(2, 2)
    same = noisy_pair(space, random_logits(space, 0), 0.0)
    assert (corrections.acrl()(same).weights(0.0, 1) == 1).all()


@given(pairs())
def test_sequence_weights_are_unbiased(pair):
    rewards = random_rewards(pair.space, 1)
    same = PolicyPair(pair.space, pair.train, pair.train)
    target = pair.gradient(pair.probs_train * rewards)
    weights = corrections.CORRECTIONS["sequence IS"](pair).weights(0.0, 1)
    mean = pair.gradient((pair.probs_infer * rewards)[:, None] * weights)
    np.testing.assert_allclose(mean, target, rtol=0, atol=1e-9)
    for correction in (corrections.CORRECTIONS | RECENT).values():
        weighting = correction(same)
        np.testing.assert_allclose(weighting.weights(0.0, 1)[pair.space.mask], 1.0, rtol=1e-15)
        assert weighting.in_loss.all()


def test_rloo_target_is_the_policy_gradient():
    space = enumerate_sequences(3, 2)
    pair = noisy_pair(space, random_logits(space, 0), 0.0)
    rewards = random_rewards(space, 0)
    mean, _ = group_gradient_moments(pair, corrections.none(pair), rewards, ADVANTAGES["rloo"], 5)
    np.testing.assert_allclose(mean, pair.gradient(pair.probs_train * rewards), rtol=0, atol=1e-14)


def test_trade_off_at_equal_mismatch():
    space = enumerate_sequences(3, 6)
    logits, rewards = random_logits(space, 0), random_rewards(space, 0)
    pair = corrections.scale_to_std_rho(0.3, lambda noise_std: noisy_pair(space, logits, noise_std))
    assert pair.rho_std == pytest.approx(0.3, rel=1e-9)
    found = corrections.qualities(pair, rewards, 16)
    assert found["sequence IS"].bias < 1e-12
    assert found["sequence TIS"].bias < found["token TIS"].bias < found["none"].bias
    assert found["sequence TIS"].std < found["sequence IS"].std
    assert found["none"].mse(1e9) == pytest.approx(found["none"].bias ** 2)


def test_recent_corrections_at_equal_mismatch():
    space = enumerate_sequences(3, 4)
    logits, rewards = random_logits(space, 0), random_rewards(space, 0)
    pair = corrections.scale_to_std_rho(0.3, lambda noise_std: noisy_pair(space, logits, noise_std))
    found = corrections.qualities(
        pair, rewards, 8, corrections=RECENT | {"token IS": corrections.temper("token", 1.0)}
    )
    # At this mismatch DRPO is plain IS to 1%, and the wide regions drop little.
    assert found["DRPO"].bias == pytest.approx(found["token IS"].bias, rel=0.05)
    assert found["DPPO-TV"].bias != found["token IS"].bias
    assert set(found) == {*RECENT, "token IS"}


def test_masked_fractions_are_expectations_over_sampled_tokens():
    space = enumerate_sequences(3, 3)
    pair = noisy_pair(space, random_logits(space, 0), 1.0)
    found = mask_fractions(pair)
    assert set(found) == set(KEEPS)
    rho = np.exp(pair.log_rho)
    expected = 0.0
    for law, row in zip(pair.probs_infer, rho, strict=True):
        expected += law * np.mean((row < 0.5) | (row > 5))
    assert found["IcePop"] == pytest.approx(expected, rel=1e-12)
    assert 0 < found["DPPO-TV"] < 1
    per_token = [law * -row.mean() for law, row in zip(pair.probs_infer, pair.log_rho, strict=True)]
    assert token_kl(pair) == pytest.approx(sum(per_token), rel=1e-12)
    same = noisy_pair(space, random_logits(space, 0), 0.0)
    assert set(mask_fractions(same).values()) == {0.0}
    assert token_kl(same) == 0


def test_no_sequence_weight_beats_the_oracle_bound():
    space = enumerate_sequences(3, 3)
    rewards = random_rewards(space, 0)
    pair = noisy_pair(space, random_logits(space, 0), 0.7)
    values = rewards - float(pair.probs_train @ rewards)
    target = pair.gradient(pair.probs_train * values)
    scale = (target**2).sum()
    n = 100
    bound = corrections.best_mse(pair, rewards, n)
    v = values[:, None] * sequence_scores(space, pair.train)
    rng = np.random.default_rng(0)
    rho = np.exp(pair.log_rho.sum(1))

    def uncentered(w):
        error = (pair.probs_infer * w) @ v - target.ravel()
        return (error @ error + (pair.probs_infer * w**2) @ (v**2).sum(1) / n) / scale

    for weights in (rho, np.ones(27), np.minimum(rho, 2), *(rho * np.exp(rng.normal(size=(50, 27))))):
        assert uncentered(weights) >= bound
    # And the weights of the derivation reach it.
    norms = (v**2).sum(1)
    unit = v / np.sqrt(np.where(norms > 0, norms, 1))[:, None]
    second = unit.T @ (pair.probs_infer[:, None] * unit)
    left = np.linalg.solve(np.eye(len(second)) + n * second, target.ravel())
    best = n * (v @ left) / np.where(norms > 0, norms, 1)
    assert uncentered(best) == pytest.approx(bound, rel=1e-9)


def test_effective_fraction_agrees_across_three_methods():
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
    absolute = float(pair.probs_infer @ np.abs(pair.log_rho.sum(1)))
    assert found.abs_seq_log_ratio == pytest.approx(absolute, rel=0.2)


def test_budget_inverts_itself_and_knows_zero():
    found = budget(0.01, 4096)
    assert budget(found.rho_std_for_half_ess, 4096).ess == pytest.approx(0.5)
    assert budget(0.01, round(found.length_at_half_ess)).ess == pytest.approx(0.5, rel=1e-3)
    none = budget(0.0, 10)
    assert (none.ess, none.abs_seq_log_ratio, none.masked_above_2) == (1.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="rho_std must be between 0 and"):
        budget(-1.0, 10)


def test_folded_normal_against_sampling():
    # 1e6 draws of a normal of std s: the mean of |x| has standard error below s / 1000.
    spread = np.sqrt(50 * np.log1p(0.04))
    draws = np.random.default_rng(0).normal(-(spread**2) / 2, spread, size=1_000_000)
    found = budget(0.2, 50)
    assert found.abs_seq_log_ratio == pytest.approx(np.abs(draws).mean(), abs=5e-3 * spread)
    assert found.masked_above_2 == pytest.approx((draws > np.log(2)).mean(), abs=2.5e-3)
    assert found.median_sequence_ratio == pytest.approx(np.exp(np.median(draws)), rel=1e-2)
