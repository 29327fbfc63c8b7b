"""The share of the loss that a remedy recovers, on made-up rewards."""

import numpy as np
import pandas as pd
import pytest

from simlab.studies.arms import Arm
from simlab.studies.estimands import FINAL_REWARD, RunRows, Tables, View, Views
from simlab.studies.registration import hash_rule
from simlab.studies.remedy_ranking import compare_pairs, rank_remedies

NONE, CONTROL, GOOD, USELESS = map(Arm, ("none", "control", "good", "useless"))


def _views(**final):
    """One run per arm and policy, with two held-out evaluations that differ between engines."""
    runs, rows, chunks = [], [], []
    for arm, rewards in final.items():
        for policy, reward in enumerate(rewards):
            key = f"{arm} {policy}"
            runs.append({"run": key, "arm": arm, "initial_policy": f"p{policy}", "seed": 0})
            chunks.append({"run": key, "step": 190, "reward": 0.0})
            for step in (100, 150, 200):
                spread = {"held_out_infer": reward - 0.02, "held_out_train": reward + 0.02}
                rows.append({"run": key, "step": step} | (spread if step > 100 else dict.fromkeys(spread, 9)))
    table = pd.DataFrame(runs).assign(steps=200, status="finished")
    tables = {"runs": table, "chunks": pd.DataFrame(chunks), "diagnostics": pd.DataFrame(rows)}
    return Views(Tables(tables))


def _jitter(center, n=24, seed=0):
    return center + 0.02 * np.random.default_rng(seed).standard_normal(n)


def test_recovered_share_is_that_of_the_held_out_reward():
    views = _views(none=_jitter(0.2), control=_jitter(0.8, seed=1), good=_jitter(0.65, seed=2))
    (row,) = rank_remedies(views, FINAL_REWARD, [GOOD], NONE, CONTROL, 7)
    assert row.share == pytest.approx(0.75, abs=0.03)
    assert row.verdict == "supported"


def test_recovered_share_within_the_margin_is_negligible():
    views = _views(none=_jitter(0.2), control=_jitter(0.8, seed=1), useless=_jitter(0.22, seed=2))
    (row,) = rank_remedies(views, FINAL_REWARD, [USELESS], NONE, CONTROL, 7)
    assert row.verdict == "negligible"


def test_recovered_share_needs_a_loss():
    views = _views(none=_jitter(0.75), control=_jitter(0.8, seed=1), good=_jitter(0.8, seed=2))
    assert rank_remedies(views, FINAL_REWARD, [GOOD], NONE, CONTROL, 7) == []


def test_final_reward_falls_back_to_sampled_reward():
    chunks = RunRows({"step": np.array([0, 190]), "reward": np.array([0.1, 0.6])}, np.arange(2))
    assert FINAL_REWARD(View(200, False, chunks)) == 0.6


def test_compare_pairs_finds_only_the_pair_that_differs():
    finals = pd.DataFrame({"a": _jitter(0.8), "b": _jitter(0.8, seed=1), "c": _jitter(0.3, seed=2)})
    found = compare_pairs(finals).set_index(["arm", "other"])["significant"].to_dict()
    assert found == {("a", "b"): False, ("a", "c"): True, ("b", "c"): True}


def test_rank_remedies_use_the_policies_that_an_arm_has():
    views = _views(
        none=_jitter(0.2), control=_jitter(0.8, seed=1), good=_jitter(0.6, 8, 2), useless=_jitter(0.2)
    )
    rows = rank_remedies(views, FINAL_REWARD, [GOOD, USELESS], NONE, CONTROL, 3)
    assert [row.policies for row in rows] == [8, 24]


def test_eight_policies_decide_neither_share_nor_pair():
    few = {"none": _jitter(0.2, 8), "control": _jitter(0.8, 8, 1), "good": _jitter(0.65, 8, 2)}
    (row,) = rank_remedies(_views(**few), FINAL_REWARD, [GOOD], NONE, CONTROL, 1)
    assert row.ci_low > 0.2
    assert row.verdict == "inconclusive"
    assert not compare_pairs(pd.DataFrame(few))["significant"].any()


def test_a_share_with_a_lower_bound_alone_is_supported():
    """A few policies recover more than they lost, so that the share has no upper bound."""
    loss = _jitter(0.5) + 0.28 * np.random.default_rng(3).standard_normal(24)
    gain = loss + np.where(np.arange(24) % 8 == 0, 0.3, 0.0)
    views = _views(none=np.zeros(24), control=loss, good=gain)
    (row,) = rank_remedies(views, FINAL_REWARD, [GOOD], NONE, CONTROL, 3)
    assert np.isinf(row.ci_high)
    assert row.verdict == "supported"


def test_hash_rule_changes_with_the_rule():
    assert hash_rule("margin 0.2") != hash_rule("margin 0.3")


def test_recovered_share_is_inconclusive_when_unbounded():
    none, control = _jitter(0.2, 8), 0.8 - 0.4 * np.array([0, 0, 1, 1, 0, 1, 0, 1])
    (row,) = rank_remedies(
        _views(none=none, control=control, good=_jitter(0.6, 8, 2)), FINAL_REWARD, [GOOD], NONE, CONTROL, 7
    )
    assert (row.level, row.verdict) == (0.95, "inconclusive")
