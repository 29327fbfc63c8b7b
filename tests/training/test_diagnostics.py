"""Diagnostics against their definitions, on a model small enough for a dense Hessian."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.flatten_util import ravel_pytree

from simlab.metrics import energy_by_frequency
from simlab.models.config import TransformerConfig
from simlab.models.transformer import logits, response_logps
from simlab.objectives import token_coefficients, value_from_terms
from simlab.training.diagnostics import (
    DIAGNOSTICS,
    DiagnosticContext,
    curvature,
    kl_to_base,
    score_norms,
)
from simlab.training.optimizer import global_norm
from simlab.training.step import policy_gradient
from tests.training.recipes import COARSE, QUICK, small_recipe, small_state

# 608 parameters.
MODEL = TransformerConfig(
    hidden_size=8, head_dim=4, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
)
ROW, PLACE = 2, 1
RECIPE = small_recipe(COARSE, model=MODEL)
STATE = small_state(RECIPE)
BASE = jax.tree.map(lambda w: 1.1 * w, STATE.params)


@pytest.fixture(scope="module")
def measured():
    def measure(*run):
        context = DiagnosticContext(*run)
        return {key: value for name in DIAGNOSTICS for key, value in DIAGNOSTICS[name](context).items()}

    return jax.jit(measure, compiler_options=QUICK)(RECIPE, STATE, BASE)


@pytest.fixture(scope="module")
def subject():
    """Inputs of the diagnostics as arrays: rollout, batch, terms and gradients of one compiled function."""

    def looked_at(recipe, state):
        subject = DiagnosticContext(recipe, state)
        batch = replace(subject.batch, key=None)
        gradient = policy_gradient(recipe, state.params, subject.trajectory, batch, subject.terms)
        sampled = subject.sampled

        def one_logp(params):
            rows = sampled.prompts[ROW : ROW + 1], sampled.responses[ROW : ROW + 1]
            return response_logps(params, MODEL, recipe.engines.train, *rows).logp[0, PLACE]

        return {
            "sampled": sampled,
            "norms": score_norms(recipe, state.params, sampled),
            "one_norm": global_norm(jax.grad(one_logp)(state.params)),
            "batch": batch,
            "terms": subject.terms,
            "gradient_norm": gradient[1]["grad_norm"],
            "logits": [logits(p, MODEL, subject.sampled.tokens, "f32") for p in (state.params, BASE)],
        }

    return jax.jit(looked_at, compiler_options=QUICK)(RECIPE, STATE)


def test_diagnostics_return_finite_values_for_every_name(measured):
    expected = {"reward_train", "held_out_avg_at_k", "held_out_train_avg_at_k", "noise_scale"}
    expected |= {"energy_by_frequency", "hessian_top", "kl_to_base"}
    assert expected <= set(measured)
    for name, value in measured.items():
        assert np.isfinite(value).all(), name


def test_diagnostics_sample_with_next_step_policy(measured, subject):
    np.testing.assert_allclose(measured["reward_infer"], subject["sampled"].rewards.mean(), rtol=1e-6)
    assert measured["reward_train"] != measured["reward_infer"]
    assert measured["held_out_train_avg_at_k"] != measured["held_out_avg_at_k"]


def test_noise_and_signal_make_up_the_whole_gradient(measured, subject):
    # The objective is a mean over sequences, so the mean of the groups' gradients is the batch's.
    whole = measured["gradient_signal"] + measured["gradient_noise"] / RECIPE.prompts_per_step
    np.testing.assert_allclose(whole, subject["gradient_norm"] ** 2, rtol=1e-3)
    assert measured["gradient_noise"] > 0
    expected = measured["gradient_noise"] / measured["gradient_signal"]
    np.testing.assert_allclose(measured["noise_scale"], expected, rtol=1e-6)


def test_score_norms_are_those_of_each_tokens_gradient(measured, subject):
    sampled, norms = subject["sampled"], subject["norms"]
    assert norms.shape == sampled.responses.shape
    np.testing.assert_allclose(norms[ROW, PLACE], subject["one_norm"], rtol=1e-4)
    coefficients = token_coefficients(RECIPE.objective, subject["batch"])
    shares = energy_by_frequency(coefficients, sampled.responses, sampled.mask, 32, score_norms=norms)
    np.testing.assert_allclose(measured["energy_by_frequency"], shares, rtol=1e-4)


def test_kl_to_base_is_exact_and_estimators_use_samples(measured, subject):
    ours, theirs = (np.asarray(jax.nn.log_softmax(z)[:, 4:-1], np.float64) for z in subject["logits"])
    mask = np.asarray(subject["sampled"].mask)
    np.testing.assert_allclose(
        measured["kl_to_base"], (np.exp(ours) * (ours - theirs)).sum(-1)[mask].mean(), rtol=1e-4
    )
    tokens = np.asarray(subject["sampled"].responses)[..., None]
    log_ratio = np.take_along_axis(theirs - ours, tokens, -1)[..., 0][mask]
    np.testing.assert_allclose(measured["kl_to_base_k1"], -log_ratio.mean(), rtol=1e-3)
    np.testing.assert_allclose(measured["kl_to_base_k3"], (np.expm1(log_ratio) - log_ratio).mean(), rtol=1e-3)


@pytest.mark.slow
def test_curvature_is_that_of_the_dense_hessian(subject):
    sampled, batch, terms = subject["sampled"], subject["batch"], subject["terms"]
    flat, unravel = ravel_pytree(STATE.params)

    def logp(flat):
        scored = response_logps(
            unravel(flat), MODEL, RECIPE.engines.train, sampled.prompts, sampled.responses
        )
        return jnp.where(sampled.mask, scored.logp, 0)

    def loss(flat):
        return -value_from_terms(RECIPE.objective, replace(batch, logp=logp(flat)), terms)

    # Row by row, one backward pass over another: `jacrev` of `jacrev` comes out asymmetric on the CPU.
    gradient = jax.grad(loss)

    def row(direction):
        return jax.grad(lambda flat: jnp.vdot(gradient(flat), direction))(flat)

    dense = jax.jit(lambda directions: lax.map(row, directions))(jnp.eye(flat.size, dtype=jnp.float32))
    dense = np.asarray(dense, np.float64)
    # Of a symmetric matrix up to float32 round-off.
    np.testing.assert_allclose(dense, dense.T, atol=1e-4 * np.abs(dense).max())
    eigenvalues = np.linalg.eigvalsh((dense + dense.T) / 2)
    found = jax.jit(lambda *run: curvature(DiagnosticContext(*run)))(RECIPE, STATE)
    # 16 of 608 directions: the bound is stated, and at the ends of a spectrum it is tight.
    gap = np.abs(eigenvalues - float(found["hessian_top"])).min()
    assert gap <= found["hessian_residual"] + 1e-4 * eigenvalues[-1]
    np.testing.assert_allclose(found["hessian_top"], eigenvalues[-1], rtol=0.05)
    np.testing.assert_allclose(found["hessian_bottom"], eigenvalues[0], rtol=0.05)


def test_kl_to_base_rejects_a_missing_base():
    with pytest.raises(ValueError, match="base must be parameters"):
        kl_to_base(DiagnosticContext(RECIPE, STATE))
