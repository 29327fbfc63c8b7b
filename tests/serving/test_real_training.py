"""Rollouts of an engine behind the protocol: same prompts, own rewards; a killed run resumes."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.rollout.sampling import SamplingParams
from simlab.serving.protocol import EngineError, Samples
from simlab.serving.real_training import engine_rollout, real_rollout
from simlab.training.loop import CheckpointWriter, resume, train
from simlab.training.step import rollout, score_rollout
from tests.training.recipes import MOE, QUICK, TASK, small_recipe, small_state


class Scripted:
    """An engine that answers odd tokens, then the end, and remembers what it was asked."""

    routed_experts = None

    def sync_weights(self, config, params):
        self.config, self.params = config, params
        return 0.25

    def generate(self, prompts, sampling):
        self.prompts, self.sampling = prompts, sampling
        responses = np.full((len(prompts), sampling.max_tokens), 3, np.int32)
        mask = np.ones(responses.shape, bool)
        return Samples(responses, mask, np.full(responses.shape, -1.0, np.float32), self.routed_experts)


def test_real_rollout_passes_weights_and_prompts():
    recipe = small_recipe()
    state = replace(small_state(recipe), step=jnp.asarray(3, jnp.int32))
    engine = Scripted()
    trajectory, apart = real_rollout(engine, recipe, state)
    assert apart == 0.25
    assert engine.config == recipe.model
    assert engine.params is state.params
    # Only the prompts: the compiler drops what they do not need.
    own = jax.jit(lambda recipe, state: rollout(recipe, state).prompts, compiler_options=QUICK)(recipe, state)
    np.testing.assert_array_equal(trajectory.prompts, own)
    np.testing.assert_array_equal(engine.prompts, own)
    assert trajectory.rewards.tolist() == [1.0] * 16
    assert engine.sampling.max_tokens == TASK.response_length
    first = engine.sampling.seed
    real_rollout(engine, recipe, replace(state, step=jnp.asarray(4, jnp.int32)))
    assert engine.sampling.seed != first


def test_what_an_engine_cannot_do_is_refused():
    recipe = small_recipe("f32/f32", model=MOE)
    state = small_state(recipe)
    with pytest.raises(ValueError, match="a real engine samples at a temperature"):
        real_rollout(Scripted(), replace(recipe, sampling=SamplingParams(top_k=2)), state)
    with pytest.raises(EngineError, match="replay R3 needs an engine that reports its experts"):
        real_rollout(Scripted(), replace(recipe, engines=replace(recipe.engines, replay="R3")), state)


def test_r2_replays_the_choice_of_the_training_engine():
    """R3 takes the experts of the rollout as they are."""
    recipe = small_recipe("f32/f32", model=MOE)
    state, engine = small_state(recipe), Scripted()
    score = jax.jit(score_rollout, compiler_options=QUICK)

    def kept(replay, told):
        engine.routed_experts = told
        replaying = replace(recipe, engines=replace(recipe.engines, replay=replay))
        scores, replayed = score(replaying, state.params, real_rollout(engine, replaying, state)[0])
        return np.asarray(scores.routed_experts), np.asarray(replayed.routed_experts)

    chosen, replayed = kept("R2", None)
    np.testing.assert_array_equal(replayed, chosen)
    told = (chosen + 1) % MOE.num_experts
    np.testing.assert_array_equal(kept("R2", told)[1], chosen)
    np.testing.assert_array_equal(kept("R3", told)[1], told)


def test_a_killed_run_goes_on(tmp_path):
    """The second half of a run that was cut in the middle is that of one that was not."""
    recipe, engine = small_recipe(), Scripted()

    def advance(recipe, state):
        number = int(state.step) + 1
        if number == limit:
            raise EngineError("gone")
        _, measured = engine_rollout(engine)(recipe, state)
        params = jax.tree.map(lambda leaf: leaf + 1, state.params)
        after = replace(state, params=params, step=jnp.asarray(number, jnp.int32))
        return after, [{"reward": params["norm"][0], "sync_apart": measured["sync_apart"]}]

    def rewards(folder):
        path = folder / "run.npz"
        state, history = resume(path, small_state(recipe))
        callbacks = [CheckpointWriter(path, 0)]
        _, metrics = train(recipe, state, 7, callbacks, chunk=1, advance=advance, history=history)
        assert metrics["sync_apart"].tolist() == [0.25] * 7
        return metrics["reward"].tolist()

    limit = 6
    with pytest.raises(EngineError, match="gone"):
        rewards(tmp_path / "cut")
    limit = 0
    whole = rewards(tmp_path / "whole")
    assert rewards(tmp_path / "cut") == whole == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    # Finished: nothing is computed any more.
    limit = 1
    assert rewards(tmp_path / "cut") == whole
