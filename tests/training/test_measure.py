"""Router flips by hand, and what evaluation makes of rewards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.engines import ENGINES, Engine
from simlab.engines.constant import hold_constant
from simlab.models.parameters import init_params
from simlab.rollout.trajectory import Trajectory
from simlab.training import evaluation
from simlab.training.measure import router_flips
from tests.training.recipes import small_recipe

PROMPT, LENGTH, LAYERS, TOP = 2, 3, 2, 2


def trajectory_of(experts, mask) -> Trajectory:
    rows = len(mask)
    return Trajectory(
        prompts=jnp.zeros((rows, PROMPT), jnp.int32),
        responses=jnp.zeros((rows, LENGTH), jnp.int32),
        mask=jnp.asarray(mask),
        logp_infer=jnp.zeros((rows, LENGTH)),
        rewards=jnp.zeros(rows),
        routed_experts=jnp.asarray(experts),
    )


@pytest.fixture
def chosen():
    """Experts 0 and 1 everywhere, [B = 2, P + T - 1 = 4, L, top_k]."""
    return np.broadcast_to(np.arange(TOP, dtype=np.int32), (2, PROMPT + LENGTH - 1, LAYERS, TOP)).copy()


FULL = np.ones((2, LENGTH), bool)


def test_the_order_within_a_set_is_no_flip(chosen):
    trajectory = trajectory_of(chosen[..., ::-1].copy(), FULL)
    np.testing.assert_array_equal(router_flips(jnp.asarray(chosen), trajectory), [0, 0])


def test_flips_are_counted_per_layer_and_once_per_token(chosen):
    other = chosen.copy()
    other[0, 1, 0] = [5, 6]  # both experts differ: one flip
    other[1, 3, 1] = [0, 7]
    other[1, 2, 1] = [7, 1]
    flips = router_flips(jnp.asarray(chosen), trajectory_of(other, FULL))
    np.testing.assert_allclose(flips, [1 / 6, 2 / 6], rtol=1e-6)


def test_only_what_is_read_for_a_response_token_counts(chosen):
    other = chosen.copy()
    other[:, 0] = 7  # the first prompt token predicts no response token
    other[1, 3] = 7  # read for a token behind the end
    mask = FULL.copy()
    mask[1, 2] = False
    np.testing.assert_array_equal(router_flips(jnp.asarray(chosen), trajectory_of(other, mask)), [0, 0])
    other[0, 1] = 7  # the last prompt token is read for the first one
    flips = router_flips(jnp.asarray(chosen), trajectory_of(other, mask))
    np.testing.assert_allclose(flips, [1 / 5, 1 / 5], rtol=1e-6)


def test_without_tokens_there_are_no_flips(chosen):
    flips = router_flips(jnp.asarray(chosen), trajectory_of(chosen + 1, ~FULL))
    np.testing.assert_array_equal(flips, [0, 0])


@pytest.mark.slow
def test_an_engine_held_constant_evaluates_as_itself():
    recipe = small_recipe()
    params = init_params(jax.random.key(1), recipe.model)
    own, held = (
        evaluation.evaluate(recipe, params, engine, jax.random.key(0), prompts=2)
        for engine in (ENGINES["bf16"], hold_constant(ENGINES["bf16"]))
    )
    assert own == held


def test_passing_takes_the_full_reward(monkeypatch):
    rewards = [[1.0, 0.5, 0.0, 1.0], [0.5, 0.5, 0.5, 0.5], [0.0, 0.0, 1.0, 0.0]]

    def sample_responses(recipe, *args):
        assert recipe.group_size == 4
        trajectory = trajectory_of(np.zeros((12, 4, 1, 1), np.int32), np.ones((12, LENGTH), bool))
        return Trajectory(**{**vars(trajectory), "rewards": jnp.asarray(rewards).reshape(-1)})

    monkeypatch.setattr(evaluation, "sample_responses", sample_responses)
    measured = evaluation.evaluate(small_recipe(), {}, Engine(), jax.random.key(0), prompts=3)
    assert {name: float(value) for name, value in measured.items()} == {
        "avg_at_k": pytest.approx(5.5 / 12),
        "pass_at_1": pytest.approx(3 / 12),
        "pass_at_k": pytest.approx(2 / 3),
    }
