"""Stages of made-up runs: what is run again, what is kept, and how often the verdicts err."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from experiments.arms import ARMS, NONE, TIS, chain_arm
from experiments.regimes import BASE
from experiments.studies import resume, stages
from experiments.studies.resume import check_arms, merge_tables
from experiments.studies.runs import CHANGING, CHUNK
from simlab.core.experiment import Experiment, execute, find_resumable
from simlab.studies import estimands as m
from simlab.studies import paired_effect
from simlab.studies.records import Trial, minus, primary
from tests.tolerances import binomial_interval

TOKEN = ("tokens_by_pi_train", "mean_rho_by_pi_train", "rms_log_rho_by_pi_train")


def _trial(claim, arm):
    better = primary(m.REWARD, minus(arm, "none"), "positive", 0.02, because="made up")
    return Trial("made_up", (better,), claim=claim)


class Recorder:
    """A run of an experiment that keeps its tables in memory."""

    smoke = False

    def __init__(self, resume_from=None):
        self.tables, self.config, self.resume_from = {}, {}, resume_from

    def configure(self, **values):
        self.config |= values

    def report(self, message):
        self.said = message

    def seeds(self, seeds):
        self.recorded = seeds

    def table(self, name, data):
        self.tables[name] = data


def _made_up(effects, calls):
    """Stages of arms whose reward is the arm's effect by start and seed."""

    def make(run, arms, seed):
        calls.append((tuple(arms), seed))
        keys = [(arm, start) for arm in arms for start in range(stages.POLICIES)]
        rows = [
            {"run": f"{a} {s} {seed}", "arm": a, "initial_policy": f"s{s}", "seed": seed} for a, s in keys
        ]
        rewards = np.repeat([effects(*key, seed) for key in keys], CHUNK)
        steps = pd.DataFrame({"run": np.repeat([row["run"] for row in rows], CHUNK), "reward": rewards})
        names = ("discrepancy", "std_rho", "max_rho", *(set(CHANGING) - {"reward"}))
        steps = steps.assign(step=np.tile(np.arange(CHUNK), len(rows)), **dict.fromkeys(names, 1.0))
        runs = pd.DataFrame(rows).assign(status="finished", steps=CHUNK, steps_completed=CHUNK)
        token = [{"step": 0, "index": 0, "metric": name, "value": 1.0} for name in TOKEN]
        vectors = [{"run": row["run"], **value} for row in rows for value in token]
        return {"runs": runs, "steps": steps, "vectors": pd.DataFrame(vectors)}

    return make


def test_the_second_stage_runs_what_the_first_leaves_open():
    noise = np.random.default_rng(0).normal(0, 0.1, (3, stages.POLICIES, 2))

    def effects(arm, start, seed):
        return {"none": 0.0, "clear": 0.5, "open": 0.05}[arm] + noise["nco".index(arm[0]), start, seed]

    clear = _trial("H7", "clear")
    unclear = _trial("L3", "open")
    run, calls = Recorder(), []
    stages.run_trials(run, (clear, unclear), smoke=(), make=_made_up(effects, calls))  # pyright: ignore
    assert calls == [(("clear", "none", "open"), 0), (("open", "none"), 1)]
    assert len(run.tables["runs"]) == 5 * stages.POLICIES
    found = {f.claim: f for f in stages.collect_evidence(m.Tables(run.tables), (clear, unclear))}
    assert found["H7"].verdict == "reproduced"
    assert found["H7"].level == stages.LEVELS[0]
    assert "stage 1 of 2" in found["H7"].note
    assert found["L3"].level == stages.LEVELS[1]
    assert "stage 2 of 2" in found["L3"].note


def test_who_stops_the_second_stage_keeps_the_first():
    claim = _trial("L3", "open")

    def effects(arm, start, seed):
        if seed == stages.SEEDS[-1]:
            raise KeyboardInterrupt
        return 0.1 * (-1) ** start * (arm == "open")

    run = Recorder()
    stages.run_trials(run, [claim], smoke=(), make=_made_up(effects, []))  # pyright: ignore
    assert len(run.tables["runs"]) == 2 * stages.POLICIES
    (found,) = stages.collect_evidence(m.Tables(run.tables), [claim])
    assert found.verdict == "inconclusive"
    assert "stage 1 of 2" in found.note
    assert run.config == {"stopped_in_stage": 2}


def test_who_stops_among_single_arms_keeps_those_that_are_whole():
    arms = ["none", "clear", "open"]

    def effects(arm, start, seed):
        if (arm, seed) == ("clear", stages.SEEDS[-1]):
            raise KeyboardInterrupt
        return {"none": 0.0, "clear": 0.5, "open": 0.05}[arm] + 0.01 * start

    run, calls = Recorder(), []
    stages.run_stages(run, arms, lambda _: arms, _made_up(effects, calls), stages.one_part_per_arm)  # pyright: ignore
    made = run.tables["runs"].groupby("arm")["seed"].agg(set).to_dict()
    assert made == {"none": {0, 1}, "clear": {0}, "open": {0}}
    assert calls[:3] == [(("none",), 0), (("clear",), 0), (("open",), 0)]
    views = m.Views(m.Tables(run.tables))
    assert {seed for _, seed in stages.common_stage(views, arms).arms["none"]} == {0}
    assert {seed for _, seed in stages.common_stage(views, ["none"]).arms["none"]} == {0, 1}


def test_both_stages_together_err_as_often_as_one():
    """The share of false verdicts without an effect, in 2,000 made-up experiments; false alarm 1e-6."""
    rng = np.random.default_rng(1)
    starts = np.arange(stages.POLICIES)
    wrong = 0
    for _ in range(2000):
        differences = rng.normal(size=(stages.POLICIES, 1)) * 0.5 + rng.normal(size=(stages.POLICIES, 2))
        looks = (differences[:, :1], differences)
        for values, level in zip(looks, stages.LEVELS, strict=True):
            labels = np.repeat(starts, values.shape[1])
            interval = paired_effect(values.reshape(-1), 0.0, labels, level=level, resamples=400)
            if interval.low > 0 or interval.high < 0:
                wrong += 1
                break
    # Over eight clusters the widened bootstrap may be off by 0.02 (see the tests of `paired_effect`).
    assert 0 < wrong <= binomial_interval(2000, 0.05, 1e-6)[1] + 0.02 * 2000


def _staged(names, calls, broken=False, diagnosed=()):
    """An experiment that asks whether the arms `names` earn more than "none", which "open" leaves open."""
    claims = [_trial("L3", name) for name in names]
    noise = np.random.default_rng(0).normal(0, 0.1, (3, stages.POLICIES, 2))

    def effects(arm, start, seed):
        if broken and seed == stages.SEEDS[-1]:
            raise KeyboardInterrupt
        return {"none": 0.0, "clear": 0.5, "open": 0.05}[arm] + noise["nco".index(arm[0]), start, seed]

    made_up = _made_up(effects, calls)

    def make(run, arms, seed):
        frames = made_up(run, arms, seed)
        seen = frames["runs"]["run"][frames["runs"]["arm"].isin(diagnosed)]
        return frames | ({"diagnostics": pd.DataFrame({"run": seen, "step": 0})} if diagnosed else {})

    def run(run):
        run.configure(base=BASE, chunk=CHUNK)
        stages.run_trials(run, claims, smoke=(), make=make, diagnosed=diagnosed)  # pyright: ignore

    return Experiment("made_up", "?", "none", run, 1.0, check_resume=check_arms)


def test_resume_keeps_the_runs_of_an_earlier_result(tmp_path):
    before, calls = execute(_staged(["open"], [], broken=True), tmp_path / "before"), []
    whole = _staged(["clear", "open"], calls)
    after = execute(
        whole, tmp_path / "after", resume_from=find_resumable(whole, before.folder, tmp_path / "after")
    )
    assert calls == [(("clear",), 0), (("open", "none"), 1)]
    assert after.manifest["config"]["resumed_from"]["finished"] == before.manifest["finished"]
    assert after.manifest["config"]["resumed_from"]["config"]["stopped_in_stage"] == 2
    assert after.manifest["seeds"] == list(stages.SEEDS)
    at_once = execute(whole, tmp_path / "at_once")
    for name in after.table_names:
        one, other = (each.table(name) for each in (after, at_once))
        keys = [key for key in ("run", "step", "metric", "low") if key in one]
        one, other = (each.sort_values(keys, ignore_index=True) for each in (one, other))
        pd.testing.assert_frame_equal(one, other)


@pytest.mark.parametrize("diagnosed", [(), ("none",)])
def test_resume_drops_diagnostics_of_another_experiment(diagnosed, tmp_path):
    other = execute(_staged(["clear", "open"], [], diagnosed=diagnosed), tmp_path / "other")
    calls = []
    asking = replace(_staged(["open"], calls, diagnosed=("none",)), name="asking")
    first = execute(
        asking, tmp_path / "first", resume_from=find_resumable(asking, other.folder, tmp_path / "first")
    )
    assert calls == [(("none",), 0), (("none",), 1)]
    assert first.manifest["config"]["resumed_from"]["name"] == "made_up"
    runs, seen = first.table("runs"), first.table("diagnostics")
    assert set(runs["arm"]) == {"open", "none"}
    assert len(runs) == 2 * len(stages.SEEDS) * stages.POLICIES
    assert sorted(seen["run"]) == sorted(runs["run"][runs["arm"] == "none"])
    assert set(first.table("chunks")["run"]) == set(runs["run"])
    again = execute(
        asking, tmp_path / "again", resume_from=find_resumable(asking, first.folder, tmp_path / "again")
    )
    assert len(calls) == 2
    assert len(again.table("diagnostics")) == len(seen)


def test_of_a_run_that_is_there_twice_the_earlier_stays():
    def tables(run, *starts):
        runs = [{"run": f"{run} {start}", "arm": "a", "initial_policy": start, "seed": 0} for start in starts]
        return m.Tables({"runs": pd.DataFrame(runs), "chunks": pd.DataFrame(runs)[["run"]]})

    both = merge_tables(tables("old", "s0", "s1"), tables("new", "s1", "s2"))
    assert [both.table(name)["run"].tolist() for name in ("runs", "chunks")] == [
        ["old s0", "old s1", "new s2"]
    ] * 2


def _described(folder, arm="chain: no correction", initial_policy="chain 100", **config):
    """A stored result with one run."""

    def run(run):
        run.configure(**{"base": BASE, "chunk": CHUNK, "arms": {arm: ARMS[arm].recorded}} | config)
        run.table("runs", [{"run": "r", "arm": arm, "initial_policy": initial_policy, "seed": 0}])

    return execute(Experiment("described", "?", "none", run, 1.0), folder)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"base": {**BASE, "prompts_per_step": 3}}, "made with base .*'prompts_per_step': 3"),
        ({"arms": {chain_arm(NONE): ARMS[chain_arm(TIS)].recorded}}, f"'{chain_arm(NONE)}' was .*grpo.tis"),
        ({"initial_policy": "chain 5"}, "has no initial policy 'chain 5' now"),
        (
            {
                "arms": {},
                "resumed_from": {"config": {"arms": {chain_arm(NONE): ARMS[chain_arm(TIS)].recorded}}},
            },
            f"'{chain_arm(NONE)}' was .*grpo.tis",
        ),
    ],
)
def test_other_runs_are_not_gone_on_from(changed, message, tmp_path):
    check_arms(_described(tmp_path / "same"))
    with pytest.raises(ValueError, match=message):
        check_arms(_described(tmp_path / "other", **changed))


def test_resume_rejects_policies_trained_on_another_cpu(tmp_path, monkeypatch):
    kept = _described(tmp_path / "kept")
    taught = _described(tmp_path / "taught", "length: BF16", "recurrence 4")
    check_arms(taught)
    monkeypatch.setattr(resume, "processor", lambda: {"processor": "another"})
    check_arms(kept)
    with pytest.raises(ValueError, match="'recurrence 4' was trained on another CPU"):
        check_arms(taught)


def test_only_a_result_with_arms_is_gone_on_from(tmp_path):
    folder = _described(tmp_path / "before").folder
    described = Experiment("described", "?", "none", lambda _: None, 1.0, check_resume=check_arms)
    bare = execute(replace(described, run=lambda run: run.configure()), tmp_path / "bare").folder
    asked = {
        "cannot resume": {"experiment": replace(described, check_resume=None)},
        "must differ from --out": {"out": folder},
        "described has no arms": {"folder": bare},
        "must hold a smoke run": {"smoke": True},
        "no finished run": {"folder": tmp_path},
    }
    fine = {"experiment": described, "folder": folder, "out": tmp_path / "out"}
    assert find_resumable(**fine).folder == folder
    for message, changed in asked.items():
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            find_resumable(**(fine | changed))
