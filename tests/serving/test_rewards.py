"""Questions and their rewards, without third-party packages: the lab's tasks, rows, errors."""

import sys

import jax
import numpy as np
import pytest

from simlab.serving.prompts import task_prompts
from simlab.serving.rewards import Question, questions, text_task
from simlab.tasks import END, PAD, TASKS, decode, encode


def test_an_answer_to_a_task_of_the_lab_earns_what_its_tokens_do():
    task = TASKS["add"](seed=0)
    prompts = task.prompt_set()[:4]
    right = np.asarray(task.demonstrations(jax.random.key(0), prompts))
    wrong = np.asarray(task.demonstrations(jax.random.key(0), prompts, 1.0))
    asked = questions("add", 4)
    for responses in (right, wrong):
        earned = task.check(np.concatenate([prompts, responses], axis=1))
        said = [decode(response).split("$")[0] for response in responses]
        assert [question.reward(text) for question, text in zip(asked, said, strict=True)] == earned.tolist()
    text = decode(right[0]).split("$")[0]
    assert asked[0].reward(text) == 1
    # Spaces have no token, and too long an answer is never ended.
    assert [asked[0].reward(said) for said in (f"{text} ", "", "a" * 40, text + "0")] == [0, 0, 0, 0]
    held_out = task_prompts("add", 4)
    np.testing.assert_array_equal(held_out, task.prompt_set("held_out")[:4])


def spelled(question):
    """A question that pays the length of an answer that begins with it."""
    return Question(question, lambda said: float(len(said)) if said.startswith(question[0]) else 0.0)


def test_rows_of_one_length_and_the_text_before_the_end():
    task = text_task([spelled(text) for text in ("1+2=", "3=", "2+2=", "3+3=")], 5, held_out=1)
    assert task.prompt_set("held_out").tolist() == [encode("1+2=").tolist()]
    assert (task.problem_count, task.prompt_length, task.response_length, task.train_size) == (3, 4, 5, 2)
    drawn = task.prompts(jax.random.key(0), 16)
    assert {decode(row) for row in drawn} == {"2+2=", "3+3="}
    rows = ["3+3=30_$1", "3+3=32102", "3+3=2$__1", "3+3=$3333", "2+2=2$$$$"]
    tokens = np.stack([encode(row) for row in rows]).reshape(5, 1, 9)
    assert task.check(tokens)[:, 0].tolist() == [3, 5, 0, 0, 1]
    assert (task.end, task.pad) == (END, PAD)
    # Equal tasks compile one program, others another.
    assert hash(task) != hash(text_task([spelled(text) for text in ("1+2=", "2+2=", "3+3=")], 5, held_out=1))


def test_texts_are_scored_outside_of_programs():
    task = text_task([spelled("1=")], 2)
    with pytest.raises(ValueError, match="outside compiled programs; sample with engine_rollout"):
        jax.jit(task.check)(np.zeros((1, 4), np.int32))
    with pytest.raises(ValueError, match="questions have no demonstrations"):
        task.demonstrations(jax.random.key(0), task.prompts(jax.random.key(0), 1))
    with pytest.raises(ValueError, match="1 held-out of 1 questions of one length"):
        text_task([spelled("1="), spelled("1+1=")], 2, held_out=1)
    with pytest.raises(ValueError, match="0 held-out of 0"):
        text_task([], 2)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("reasoning-gym:chain_sum", "install it with: pip install reasoning-gym"),
        ("math-verify:none.jsonl", "install it with: pip install math-verify"),
        ("reasoning-gim:chain_sum", "unknown kind of question 'reasoning-gim'; did you mean 'reasoning-gym'"),
        ("ad", "unknown task 'ad'; did you mean 'add'"),
    ],
)
def test_what_is_not_there_is_named(monkeypatch, name, words):
    for module in ("reasoning_gym", "math_verify"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=words):
        questions(name, 2)
