"""Questions and rewards without third-party packages: tasks of simlab, rows, errors."""

import sys

import jax
import numpy as np
import pytest

from simlab.serving.prompts import load_task_prompts
from simlab.serving.rewards import Question, build_text_task, load_questions
from simlab.tasks import EOS_TOKEN_ID, PAD_TOKEN_ID, TASKS, decode, encode


def test_load_questions_rewards_texts_like_tokens():
    task = TASKS["add"](seed=0)
    prompts = task.prompt_set()[:4]
    right = np.asarray(task.demonstrations(jax.random.key(0), prompts))
    wrong = np.asarray(task.demonstrations(jax.random.key(0), prompts, 1.0))
    asked = load_questions("add", 4)
    for responses in (right, wrong):
        rewards = task.check(np.concatenate([prompts, responses], axis=1))
        said = [decode(response).split("$")[0] for response in responses]
        assert [question.reward(text) for question, text in zip(asked, said, strict=True)] == rewards.tolist()
    text = decode(right[0]).split("$")[0]
    assert asked[0].reward(text) == 1
    # Spaces have no token, and an answer that is too long has no end token.
    assert [asked[0].reward(said) for said in (f"{text} ", "", "a" * 40, text + "0")] == [0, 0, 0, 0]
    held_out = load_task_prompts("add", 4)
    np.testing.assert_array_equal(held_out, task.prompt_set("held_out")[:4])


def make_question(question):
    """A question whose reward is the length of an answer with the same first character."""
    return Question(question, lambda said: float(len(said)) if said.startswith(question[0]) else 0.0)


def test_text_task_scores_text_before_the_end():
    task = build_text_task([make_question(text) for text in ("1+2=", "3=", "2+2=", "3+3=")], 5, held_out=1)
    assert task.prompt_set("held_out").tolist() == [encode("1+2=").tolist()]
    assert (task.problem_count, task.prompt_length, task.response_length, task.train_size) == (3, 4, 5, 2)
    drawn = task.prompts(jax.random.key(0), 16)
    assert {decode(row) for row in drawn} == {"2+2=", "3+3="}
    rows = ["3+3=30_$1", "3+3=32102", "3+3=2$__1", "3+3=$3333", "2+2=2$$$$"]
    tokens = np.stack([encode(row) for row in rows]).reshape(5, 1, 9)
    assert task.check(tokens)[:, 0].tolist() == [3, 5, 0, 0, 1]
    assert (task.eos_token_id, task.pad_token_id) == (EOS_TOKEN_ID, PAD_TOKEN_ID)
    # Equal tasks share a compiled function.
    assert hash(task) != hash(
        build_text_task([make_question(text) for text in ("1+2=", "2+2=", "3+3=")], 5, held_out=1)
    )


def test_text_task_rejects_compiled_scoring():
    task = build_text_task([make_question("1=")], 2)
    with pytest.raises(ValueError, match=r"inside compiled functions\. Sample with engine_rollout"):
        jax.jit(task.check)(np.zeros((1, 4), np.int32))
    with pytest.raises(ValueError, match="Questions have no demonstrations"):
        task.demonstrations(jax.random.key(0), task.prompts(jax.random.key(0), 1))
    with pytest.raises(ValueError, match="below the 1 questions of one length, got 1"):
        build_text_task([make_question("1="), make_question("1+1=")], 2, held_out=1)
    with pytest.raises(ValueError, match="below the 0 questions of one length, got 0"):
        build_text_task([], 2)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("reasoning-gym:chain_sum", "Install: pip install reasoning-gym"),
        ("math-verify:none.jsonl", "Install: pip install math-verify"),
        ("reasoning-gim:chain_sum", "unknown kind of question 'reasoning-gim'; did you mean 'reasoning-gym'"),
        ("ad", "unknown task 'ad'; did you mean 'add'"),
    ],
)
def test_load_questions_names_what_is_missing(monkeypatch, name, words):
    for module in ("reasoning_gym", "math_verify"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=words):
        load_questions(name, 2)
