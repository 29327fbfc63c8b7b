"""The check of stored results: commits of this history, clean trees, one processor family per policy."""

import subprocess

import pandas as pd
import pytest

from simlab.core.manifest import write_manifest
from simlab.core.paths import checkout_root
from simlab.core.results import Results, write_table
from simlab.studies.provenance import check_result, check_results

ROOT = checkout_root()
HEAD = subprocess.run(
    ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
).stdout.strip()
TO_REMAKE = {"accumulator_drift", "attribution_ladder"}
"""Results whose commits were lost, until they are made again."""


def problems(folder, *, commit=HEAD, dirty=False, families=("A", "A"), **config):
    manifest = {"name": "made_up", "config": config, "commit": commit, "dirty": dirty}
    write_manifest(folder, manifest)  # pyright: ignore
    runs = {"arm": ["a", "b"], "initial_policy": ["p", "p"], "processor_family": list(families)}
    write_table(folder, "runs", pd.DataFrame(runs))
    return list(check_result(Results(folder), ROOT))


@pytest.mark.skipif(not HEAD, reason="no git history")
def test_clean_result_of_this_history_has_no_problem(tmp_path):
    assert problems(tmp_path) == []


@pytest.mark.skipif(not HEAD, reason="no git history")
def test_check_names_lost_commits_and_changed_trees(tmp_path):
    assert problems(tmp_path, commit="0" * 40) == ["commit 000000000000 does not exist"]
    assert problems(tmp_path, commit=None) == ["names no commit"]
    assert problems(tmp_path, dirty=True) == ["the tree was changed"]
    earlier = {"name": "old", "commit": "0" * 40, "dirty": False, "config": {}}
    assert problems(tmp_path, resumed_from=earlier) == [
        "resumed from old: commit 000000000000 does not exist"
    ]


@pytest.mark.skipif(not HEAD, reason="no git history")
def test_check_rejects_arms_of_a_policy_on_two_processors(tmp_path):
    (line,) = problems(tmp_path, families=("A", "B"))
    assert line == "arms of initial policy 'p' ran on A, B; one family is allowed"


@pytest.mark.skipif(not HEAD, reason="no git history")
def test_stored_results_come_from_this_history():
    assert {line.partition(":")[0] for line in check_results()} <= TO_REMAKE
