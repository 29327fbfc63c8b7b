"""The initial policies of the arms are those that the screens kept."""

from typing import Any

import pytest

from experiments.policies import CHAIN_POLICIES, MOE_POLICIES, NEW_POLICIES
from experiments.studies.initial_policies import MIN_REWARD
from experiments.studies.runs import BLOCK
from simlab.core.paths import committed_results
from simlab.core.results import Results


def test_screened_seeds_are_those_that_passed_the_screen():
    policies = Results(committed_results("flagship")).table("initial_policies")
    passed = policies[policies["passed_screen"]]["warm_start.seed"].tolist()
    assert tuple(passed[:BLOCK]) == (6, 8, 9, 10, 11, 13, 15, 16)


def _seed_of(policy: str | dict[str, Any]) -> int:
    return policy["seed"] if isinstance(policy, dict) else int(policy.rpartition("-")[2])


@pytest.mark.parametrize(
    ("screened", "policies"),
    [
        ("initial_policies", CHAIN_POLICIES),
        ("initial_moe_policies", MOE_POLICIES),
        ("new_policies", NEW_POLICIES),
    ],
)
def test_policies_on_chains_are_those_that_have_learned(screened, policies):
    rows = Results(committed_results(screened)).table("initial_policies")
    reward = rows["held_out_reward" if "held_out_reward" in rows else "reward_bf16"]
    assert rows["passed_screen"].tolist() == (reward >= MIN_REWARD).tolist()
    passed = rows[rows["passed_screen"]]["seed"].tolist()
    assert [_seed_of(policy) for policy in policies.values()] == passed
    seeds = rows["seed"].tolist()
    assert seeds == list(range(seeds[0], passed[-1] + 1))
