"""Rewards of reasoning-gym and math-verify as they are installed, and training by them."""

import json
import site
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from simlab.core.paths import checkout_root
from simlab.engines import find_pair
from simlab.models import MODELS
from simlab.models.parameters import shapes_of
from simlab.objectives import get_objective
from simlab.serving.jax_engine import JaxEngine
from simlab.serving.prompts import load_task_prompts
from simlab.serving.real_training import real_rollout
from simlab.serving.rewards import build_text_task, load_gym_questions, load_math_questions, load_questions
from simlab.tasks import TASKS, decode, encode
from simlab.training.checkpoints import load_tree
from simlab.training.recipe import Recipe, initial_state
from simlab.training.step import learn
from tests.engines_real.frameworks import interpreter
from tests.training.recipes import QUICK, differ

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module", autouse=True)
def installed():
    """The packages of the environment behind simlab's own, as the extra `rewards` would have them."""
    paths = list(sys.path)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site.addsitedir(str(Path(interpreter("rewards")).parents[1] / "lib" / version / "site-packages"))
    yield
    sys.path[:] = paths


def test_reasoning_gym_pays_for_right_answers():
    asked = load_questions("reasoning-gym:chain_sum", 8)
    assert [question.text for question in asked] != [
        question.text for question in load_gym_questions("chain_sum", 8, "held_out")
    ]
    for question in load_gym_questions("chain_sum", 4, min_terms=2, max_terms=2):
        first, sign, second = question.text.split(":")[1].split()[:3]
        right = int(first) + int(sign + second)
        assert question.reward(f" {right}\n") == question.reward(f"So <answer> {right} </answer>.") == 1
        assert question.reward(str(right + 1)) == question.reward("") == 0
        assert 0 < question.reward(f"it is {right}") < 1
    # Its scorer raises on words.
    (question,) = load_gym_questions("prime_factorization", 1)
    assert question.reward("two times three") == 0
    with pytest.raises(
        ValueError, match="unknown task of reasoning-gym 'chain_sun'; did you mean 'chain_sum'"
    ):
        load_questions("reasoning-gym:chain_sun", 1)
    words = load_task_prompts(
        "reasoning-gym:spell_backward", 3, lambda text: np.frombuffer(text.encode(), np.uint8)
    )
    assert all(bytes(row).startswith(b"Spell this word") for row in words)


@pytest.mark.parametrize(
    ("right", "same", "other"),
    [
        (r"$\frac{1}{2}$", ["0.5", r"\boxed{\frac{2}{4}}", "the answer is $1/2$"], ["2", "", "half"]),
        (r"$x^2+2x+1$", ["$(x+1)^2$", "$1 + x(x + 2)$"], ["$(x-1)^2$"]),
        ("5 + 67 #### 72", ["72", r"Thus $72$."], ["73", "-72"]),
    ],
)
def test_math_verify_pays_for_equal_answers(tmp_path, right, same, other):
    file = tmp_path / "problems.jsonl"
    file.write_text(json.dumps({"question": "?", "answer": right}) + "\n")
    (question,) = load_questions(f"math-verify:{file}", 5)
    assert [question.reward(said) for said in same + other] == [1.0] * len(same) + [0.0] * len(other)


def test_a_file_of_questions_is_read_line_by_line(tmp_path):
    file = tmp_path / "problems.jsonl"
    for line, words in (
        ('{"question": "?"}', "must have question and answer"),
        ("x", "must have question and answer"),
        ('{"question": "?", "answer": "who knows"}', "must find an answer in 'who knows'"),
    ):
        file.write_text('{"question": "?", "answer": "1"}\n' + line)
        assert len(load_math_questions(file, 1)) == 1
        with pytest.raises(ValueError, match=rf"problems.jsonl, line 2: .*{words}"):
            load_math_questions(file, 2)


def test_a_policy_of_the_lab_learns_from_reasoning_gym():
    """The sums of `add` in its words: its scorer pays the policy that was taught `add` as `add` does."""
    asked = load_gym_questions("chain_sum", 64, min_terms=2, max_terms=2, min_digits=3, max_digits=3)
    task = build_text_task(
        [question for question in asked if "+" in question.text],
        TASKS["add"]().response_length,
        encode=lambda text: encode(text.split(":")[1].replace(" ", "")),
        decode=lambda response: decode(response).lstrip("abcdefghij").lstrip("0"),
    )
    recipe = Recipe(
        engines=find_pair("f32/f32"),
        objective=get_objective("grpo"),
        task=task,
        model=MODELS["tiny-dense"],
        prompts_per_step=8,
        group_size=8,
        minibatches=1,
    )
    weights = checkout_root() / "experiments" / "warm_starts" / "add-tiny-dense-0.npz"
    state = initial_state(recipe, load_tree(weights, shapes_of(recipe.model)), jax.random.key(0))
    trajectory, _ = real_rollout(JaxEngine("f32"), recipe, state)
    own = TASKS["add"]().check(np.concatenate([trajectory.prompts, trajectory.responses], axis=1))
    rewards = np.asarray(trajectory.rewards)
    np.testing.assert_array_equal(rewards == 1, np.asarray(own) == 1)
    assert 0.1 < rewards.mean() < 0.9
    after, metrics = jax.jit(learn, compiler_options=QUICK)(recipe, state, trajectory)
    np.testing.assert_allclose(metrics["reward"], rewards.mean(), rtol=1e-6)
    assert differ(after.params, state.params)
