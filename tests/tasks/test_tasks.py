"""Rewards of each task case by case, and the distribution of its demonstrations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.tasks import TASKS, decode, encode
from tests.tolerances import assert_within_interval, binomial_interval

CASES = [
    ("add", "123+456=", "0579$", 1.0),
    ("add", "999+999=", "abcjabcj1998$", 1.0),
    ("add", "123+456=", "a0579b$", 0.0),
    ("add", "123+456=", "0578$", 0.0),
    ("add", "123+456=", "579$", 0.0),
    ("add", "123+456=", "k0579$", 0.0),
    ("add", "123+456=", "_0579$", 0.0),
    ("add", "123+456=", "abcjabcja0579", 0.0),
    ("digit_sum", "17:42=", "830$", 1.0),
    ("digit_sum", "17:42=", "119$", 1.0),
    ("digit_sum", "17:42=", "118$", 0.0),
    ("digit_sum", "17:42=", "92$", 0.0),
    ("digit_sum", "17:42=", "1199", 0.0),
    ("digit_sum", "17:42=", "a00$", 0.0),
    ("sort", "50213>", "01235$", 1.0),
    ("sort", "50210>", "00125$", 1.0),
    ("sort", "50213>", "01253$", 0.0),
    ("two_spellings", "12+34=", "046$", 1.0),
    ("two_spellings", "12+34=", "aeg$", 1.0),
    ("two_spellings", "12+34=", "0eg$", 0.0),
    ("template", "12+34=", "iadd:046$", 1.0),
    ("template", "12+34=", "iadd:045$", 0.0),
    ("template", "12+34=", "046$", 0.0),
    ("recurrence", "1234>", "5$", 1 / 32),
    ("recurrence", "1234>", "5704$", 4 / 32),
    ("recurrence", "1234>", "5703$", 0.0),
    ("recurrence", "1234>", "$", 0.0),
    ("chain", "1234>", "5704$", 4 / 64),
    ("chain", "1234>", "5714$", 2 / 64),
    ("chain", "1234>", "$", 0.0),
    ("chain", "1234>", "5704", 0.0),
]


@pytest.mark.parametrize(("name", "prompt", "response", "reward"), CASES)
def test_reward(name, prompt, response, reward):
    task = TASKS[name]()
    assert float(task.check(encode(prompt + response.ljust(task.response_length, "_")))) == np.float32(reward)


def test_recurrence_rewards_all_terms_with_one():
    terms = [1, 2, 3, 4]
    for _ in range(32):
        terms.append((terms[-1] + terms[-4]) % 10)
    text = "1234>" + "".join(map(str, terms[4:])) + "$"
    assert float(TASKS["recurrence"]().check(encode(text))) == 1.0


def test_response_length_is_at_most_256():
    assert TASKS["recurrence"](difficulty=255).response_length == 256
    with pytest.raises(ValueError, match="response_length must be at most 256, got 257"):
        TASKS["recurrence"](difficulty=256)


@pytest.mark.parametrize(
    ("scratch", "response", "reward"),
    [(0, "046$", 1.0), (0, "a046", 0.0), (3, "ab046$_", 1.0), (3, "046$___", 1.0), (3, "abca046", 0.0)],
)
def test_scratch_is_optional(scratch, response, reward):
    task = TASKS["add"](difficulty=2, scratch=scratch)
    assert task.response_length == len(response)
    assert float(task.check(encode("12+34=" + response))) == reward


def test_scratch_limits():
    assert TASKS["add"](scratch=123).response_length == 128
    with pytest.raises(ValueError, match="scratch must be 0 or more letters, got -1"):
        TASKS["add"](scratch=-1)


def test_two_spellings_demonstrates_both_equally():
    task = TASKS["two_spellings"]()
    prompts = jnp.tile(task.prompts(jax.random.key(0), 1), (2000, 1))
    responses = task.demonstrations(jax.random.key(1), prompts)
    in_letters = int(sum(decode(row)[0].isalpha() for row in responses))
    assert_within_interval(in_letters, *binomial_interval(2000, 0.5, 1e-6), alpha=1e-6)


def test_recurrence_stops_after_every_term_equally_often():
    task = TASKS["recurrence"](difficulty=16)
    prompts = task.prompts(jax.random.key(0), 2000)
    responses = np.asarray(task.demonstrations(jax.random.key(1), prompts))
    lengths = (responses == encode("$")[0]).argmax(axis=1)
    assert lengths.min() == 1
    for n in range(1, 5):
        going = lengths >= n
        assert_within_interval(
            int((lengths == n).sum()), *binomial_interval(int(going.sum()), 0.5, 1e-6), alpha=1e-6
        )


def test_demonstrations_have_the_stated_error_rate():
    task = TASKS["sort"]()
    prompts = task.prompts(jax.random.key(0), 2000)
    correct, perturbed = (task.demonstrations(jax.random.key(1), prompts, error_rate=p) for p in (0.0, 0.2))
    # A random digit is the correct one in a tenth of the draws.
    digits = 5 * 2000
    changed = int((correct != perturbed).sum())
    assert_within_interval(changed, *binomial_interval(digits, 0.2 * 0.9, 1e-6), alpha=1e-6)


def test_prompt_set_of_the_flagship_is_fixed():
    task = TASKS["add"]()
    assert [decode(row) for row in task.prompt_set("held_out")[:2]] == ["885+440=", "403+958="]


def test_encode_rejects_characters_without_a_token():
    with pytest.raises(ValueError, match="got 'X'"):
        encode("12X")
