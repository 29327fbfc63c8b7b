"""Blocks of initial policies resume from an earlier result or from the cache."""

import pandas as pd
import pytest

from experiments.studies import policy_blocks
from experiments.studies.policy_blocks import make_part
from experiments.studies.runs import RunSpec
from simlab.core.experiment import Run
from simlab.studies.estimands import Tables

WANTED = [RunSpec("arm", policy, 0, {}) for policy in ("chain 1", "chain 2")]


def earlier_tables(policies):
    keys = [f"arm {policy} 0" for policy in policies] + ["other chain 1 0"]
    arms = ["arm"] * len(policies) + ["other"]
    runs = pd.DataFrame({"run": keys, "arm": arms, "initial_policy": [*policies, "chain 1"]})
    return Tables({"runs": runs, "chunks": pd.DataFrame({"run": keys * 2, "reward": 0.5})})


def test_block_of_an_earlier_result_is_not_run_again(tmp_path):
    part = make_part(Run("x", tmp_path), "arm", WANTED, earlier_tables(["chain 1", "chain 2", "chain 3"]))
    assert list(part.table("runs")["run"]) == ["arm chain 1 0", "arm chain 2 0"]
    assert len(part.table("chunks")) == 4


def test_block_that_lacks_a_policy_is_run(tmp_path, monkeypatch):
    def refuse(*args):
        raise InterruptedError

    monkeypatch.setattr(policy_blocks, "run_part", refuse)
    with pytest.raises(InterruptedError):
        make_part(Run("x", tmp_path / "x"), "arm", WANTED, earlier_tables(["chain 1"]))


def test_finished_block_is_run_again_with_other_code(tmp_path, monkeypatch):
    arms, made = [], earlier_tables(["chain 1", "chain 2"])

    def count(_run, arm, _wanted):
        arms.append(arm)
        return made

    monkeypatch.setattr(policy_blocks, "run_part", count)
    for digest, times in (("now", 1), ("now", 1), ("other", 2)):
        monkeypatch.setattr(policy_blocks, "code_digest", lambda digest=digest: digest)
        make_part(Run("x", tmp_path / "x"), "arm", WANTED, Tables({}))
        assert len(arms) == times
