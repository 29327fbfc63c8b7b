"""What every task has to keep, whatever it is about."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.tasks import EOS_TOKEN_ID, PAD_TOKEN_ID, TASKS, VOCABULARY_SIZE, decode, encode
from tests.tolerances import assert_exact

COUNT = 64


@pytest.fixture(params=TASKS, scope="module")
def task(request):
    return TASKS[request.param](train_size=96, held_out_size=32)


@pytest.fixture(scope="module")
def pairs(task):
    prompts = task.prompts(jax.random.key(0), COUNT)
    return prompts, task.demonstrations(jax.random.key(1), prompts, 0.0)


def joined(pairs):
    return np.concatenate(pairs, axis=-1)


def test_shapes_and_types(task, pairs):
    prompts, responses = pairs
    assert prompts.shape == (COUNT, task.prompt_length)
    assert responses.shape == (COUNT, task.response_length)
    assert prompts.dtype == responses.dtype == jnp.int32
    tokens = np.asarray(joined(pairs))
    assert tokens.min() >= 0
    assert tokens.max() < VOCABULARY_SIZE


def test_demonstrations_end_once_and_are_padded(pairs):
    for row in np.asarray(pairs[1]):
        (end,) = np.flatnonzero(row == EOS_TOKEN_ID)
        assert (row[:end] != PAD_TOKEN_ID).all()
        assert (row[end + 1 :] == PAD_TOKEN_ID).all()


def test_demonstrations_are_rewarded(task, pairs):
    rewards = np.asarray(task.check(joined(pairs)))
    assert rewards.dtype == np.float32
    assert (rewards > 0).all()
    assert (rewards <= 1).all()


def test_what_follows_the_end_is_ignored(task, pairs):
    tokens = np.asarray(joined(pairs))
    after_end = np.cumsum(tokens == EOS_TOKEN_ID, axis=-1) > (tokens == EOS_TOKEN_ID)
    junk = np.where(after_end, np.random.default_rng(0).integers(0, 32, tokens.shape, np.int32), tokens)
    assert_exact(task.check(junk), task.check(tokens))


def test_without_an_end_nothing_is_earned(task, pairs):
    tokens = joined(pairs)
    assert (
        np.asarray(task.check(np.where(tokens == EOS_TOKEN_ID, PAD_TOKEN_ID, tokens).astype(np.int32))) == 0
    ).all()


def test_answers_of_another_prompt_earn_less(task, pairs):
    prompts, responses = pairs
    moved = np.asarray(task.check(joined((prompts, np.roll(responses, 1, axis=0)))))
    assert moved.mean() < 0.2 * np.asarray(task.check(joined(pairs))).mean()


def test_mistakes_change_digits_only_and_cost_the_reward(task, pairs):
    prompts, responses = pairs
    spoilt = task.demonstrations(jax.random.key(1), prompts, 0.3)
    assert_exact(spoilt < 2, responses < 2)
    changed = np.any(np.asarray(spoilt) != responses, axis=-1)
    assert changed.any()
    rewards, right = np.asarray(task.check(joined((prompts, spoilt)))), np.asarray(task.check(joined(pairs)))
    assert_exact(rewards[~changed], right[~changed])
    # Where there are many solutions, two wrong digits may by chance make another one; most do not.
    assert rewards[changed].mean() < 0.2


def test_splits_are_finite_distinct_and_disjoint(task):
    train, held_out = ({decode(row) for row in task.prompt_set(split)} for split in ("train", "held_out"))
    assert len(train) == 96
    assert len(held_out) == 32
    assert not train & held_out
    drawn = {decode(row) for row in task.prompts(jax.random.key(3), COUNT, "held_out")}
    assert drawn <= held_out


def test_a_smaller_training_set_is_a_part_of_a_larger(task):
    smaller = type(task)(train_size=24, held_out_size=32)
    assert_exact(smaller.prompt_set("train"), task.prompt_set("train")[:24])
    assert_exact(smaller.prompt_set("held_out"), task.prompt_set("held_out"))


def test_one_row_and_many_agree(task, pairs):
    tokens = joined(pairs)
    assert_exact(np.stack([task.check(row) for row in tokens[:4]]), task.check(tokens)[:4])


def test_difficulty_is_a_parameter(task):
    easier, harder = (type(task)(difficulty=d, train_size=8, held_out_size=2) for d in (2, 4))
    assert easier.problem_count <= harder.problem_count
    assert easier.response_length < harder.response_length
    prompts = harder.prompts(jax.random.key(0), COUNT)
    tokens = joined((prompts, harder.demonstrations(jax.random.key(1), prompts, 0.0)))
    assert (np.asarray(harder.check(tokens)) > 0).all()


def test_vocabulary_round_trip(task):
    text = task.problem(7)
    assert decode(encode(text)) == text


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"difficulty": 0}, "difficulty must be an integer >= 1, got 0"),
        ({"train_size": 10**9}, "at least 1 each and at most"),
        ({"held_out_size": 0}, "and 0"),
    ],
)
def test_bad_sizes_are_refused(task, bad, words):
    with pytest.raises(ValueError, match=words):
        type(task)(**bad)


def test_unknown_split_and_bad_width_are_refused(task, pairs):
    with pytest.raises(ValueError, match="split must be one of train, held_out, got 'test'"):
        task.prompt_set("test")
    with pytest.raises(ValueError, match="columns"):
        task.check(pairs[0])
