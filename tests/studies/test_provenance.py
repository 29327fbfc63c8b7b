"""The check of stored results: commits of this history, clean trees, one processor family per policy."""

import json
import subprocess
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from simlab.core.manifest import MANIFEST_NAME, write_manifest
from simlab.core.paths import checkout_root
from simlab.core.results import Results, write_table
from simlab.studies.arms import Arm
from simlab.studies.design import Design
from simlab.studies.provenance import check_design, check_result, check_results, list_migrations

ROOT = checkout_root()
HEAD = subprocess.run(
    ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
).stdout.strip()


def problems(folder, *, commit=HEAD, dirty=False, families=("A", "A"), device=None, **config):
    manifest = {"name": "made_up", "config": config, "commit": commit, "dirty": dirty, "device": device or {}}
    write_manifest(folder, manifest)  # pyright: ignore
    runs = {"arm": ["a", "b"], "initial_policy": ["p", "p"]}
    runs |= {"processor_family": list(families)} if families else {}
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
@pytest.mark.parametrize("other", ["A", "unknown"])
def test_check_rejects_runs_of_an_unknown_processor(tmp_path, other):
    (line,) = problems(tmp_path, families=("unknown", other))
    assert line == "does not say on which processor all arms of initial policy 'p' ran"


@pytest.mark.skipif(not HEAD, reason="no git history")
def test_check_wants_the_processor_of_every_policy(tmp_path):
    missing = ["does not say on which processor each initial policy ran"]
    earlier = {"name": "old", "commit": HEAD, "dirty": False, "config": {}}
    assert problems(tmp_path, families=()) == missing
    assert problems(tmp_path, families=(), device={"processor": "A"}) == []
    assert problems(tmp_path, families=(), device={"processor": "A"}, resumed_from=earlier) == missing


def test_check_names_arms_that_are_defined_differently_now():
    arm = Arm("a", {"objective": "grpo"}, {"p": "a.npz"}, noise_factor=2.0)
    design = Design({}, {"a": arm, "b": arm}, "a")
    earlier = {"config": {"arms": {"a": {"changes": {"objective": "grpo"}, "gain": 0.3}}}}
    manifest: Any = {"config": {"resumed_from": earlier, "arms": {"b": arm.recorded, "gone": {"steps": 1}}}}
    assert list(check_design(manifest, design)) == []
    changed = replace(design, arms={"a": replace(arm, changes={}), "b": replace(arm, noise_factor=1.0)})
    lines = sorted(check_design(manifest, changed))
    assert [line.partition(" was ")[0] for line in lines] == ["arm 'a'", "arm 'b'"]


@pytest.mark.skipif(not HEAD, reason="no git history")
def test_stored_results_come_from_this_history():
    assert check_results() == []


def test_migrations_of_a_result_are_those_of_its_rows(tmp_path):
    earlier = {"migrated_by": "one renamed", "config": {}}
    manifest = {
        "migrated_by": "other renamed",
        "config": {"resumed_from": {"config": {"resumed_from": earlier}}},
    }
    for name, content in (("a", manifest), ("b", {"config": {}})):
        (tmp_path / name).mkdir()
        (tmp_path / name / MANIFEST_NAME).write_text(json.dumps(content))
    assert list_migrations(tmp_path) == {"a": "other renamed; one renamed"}
