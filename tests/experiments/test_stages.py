"""Stages of made-up runs: what is run again, what is kept, and how often the verdicts err."""

from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest

from experiments import dynamics_study
from experiments.campaign import ARMS, NONE, TIS, long
from experiments.dynamics_study import stages
from experiments.dynamics_study.earlier import joined, same_arms
from experiments.dynamics_study.runs import CHANGING, CHUNK
from experiments.regime import BASE
from simlab.core.experiment import Experiment, earlier, execute
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

    def __init__(self, after=None):
        self.tables, self.config, self.after = {}, {}, after

    def configure(self, **values):
        self.config |= values

    def say(self, message):
        self.said = message

    def seeds(self, seeds):
        self.recorded = seeds

    def table(self, name, data):
        self.tables[name] = data


def _made_up(effects, calls):
    """Stages of arms whose reward is the arm's effect by start and seed."""

    def make(run, arms, seed):
        calls.append((tuple(arms), seed))
        keys = [(arm, start) for arm in arms for start in range(stages.STARTS)]
        rows = [{"run": f"{a} {s} {seed}", "arm": a, "start": f"s{s}", "seed": seed} for a, s in keys]
        rewards = np.repeat([effects(*key, seed) for key in keys], CHUNK)
        steps = pd.DataFrame({"run": np.repeat([row["run"] for row in rows], CHUNK), "reward": rewards})
        names = ("discrepancy", "std_rho", "max_rho", *(set(CHANGING) - {"reward"}))
        steps = steps.assign(step=np.tile(np.arange(CHUNK), len(rows)), **dict.fromkeys(names, 1.0))
        runs = pd.DataFrame(rows).assign(status="finished", steps=CHUNK, steps_made=CHUNK)
        token = [{"step": 0, "index": 0, "metric": name, "value": 1.0} for name in TOKEN]
        vectors = [{"run": row["run"], **value} for row in rows for value in token]
        return {"runs": runs, "steps": steps, "vectors": pd.DataFrame(vectors)}

    return make


def test_the_second_stage_runs_what_the_first_leaves_open():
    noise = np.random.default_rng(0).normal(0, 0.1, (3, stages.STARTS, 2))

    def effects(arm, start, seed):
        return {"none": 0.0, "clear": 0.5, "open": 0.05}[arm] + noise["nco".index(arm[0]), start, seed]

    clear = _trial("H7", "clear")
    unclear = _trial("L3", "open")
    run, calls = Recorder(), []
    stages.compute(run, (clear, unclear), smoke=(), make=_made_up(effects, calls))  # pyright: ignore
    assert calls == [(("clear", "none", "open"), 0), (("open", "none"), 1)]
    assert len(run.tables["runs"]) == 5 * stages.STARTS
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
    stages.compute(run, [claim], smoke=(), make=_made_up(effects, []))  # pyright: ignore
    assert len(run.tables["runs"]) == 2 * stages.STARTS
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
    stages.staged(run, arms, lambda _: arms, _made_up(effects, calls), stages.singly)  # pyright: ignore
    made = run.tables["runs"].groupby("arm")["seed"].agg(set).to_dict()
    assert made == {"none": {0, 1}, "clear": {0}, "open": {0}}
    assert calls[:3] == [(("none",), 0), (("clear",), 0), (("open",), 0)]
    views = m.Views(m.Tables(run.tables))
    assert {seed for _, seed in stages.whole(views, arms).arms["none"]} == {0}
    assert {seed for _, seed in stages.whole(views, ["none"]).arms["none"]} == {0, 1}


def test_both_stages_together_err_as_often_as_one():
    """The share of false verdicts without an effect, in 2,000 made-up experiments; false alarm 1e-6."""
    rng = np.random.default_rng(1)
    starts = np.arange(stages.STARTS)
    wrong = 0
    for _ in range(2000):
        differences = rng.normal(size=(stages.STARTS, 1)) * 0.5 + rng.normal(size=(stages.STARTS, 2))
        looks = (differences[:, :1], differences)
        for values, level in zip(looks, stages.LEVELS, strict=True):
            labels = np.repeat(starts, values.shape[1])
            interval = paired_effect(values.reshape(-1), 0.0, labels, level=level, resamples=400)
            if interval.low > 0 or interval.high < 0:
                wrong += 1
                break
    # Over eight clusters the widened bootstrap may be off by 0.02 (see the tests of `paired_effect`).
    assert 0 < wrong <= binomial_interval(2000, 0.05, 1e-6)[1] + 0.02 * 2000


def _staged(names, calls, broken=False, watched=()):
    """An experiment that asks whether the arms `names` earn more than "none", which "open" leaves open."""
    claims = [_trial("L3", name) for name in names]
    noise = np.random.default_rng(0).normal(0, 0.1, (3, stages.STARTS, 2))

    def effects(arm, start, seed):
        if broken and seed == stages.SEEDS[-1]:
            raise KeyboardInterrupt
        return {"none": 0.0, "clear": 0.5, "open": 0.05}[arm] + noise["nco".index(arm[0]), start, seed]

    made_up = _made_up(effects, calls)

    def make(run, arms, seed):
        frames = made_up(run, arms, seed)
        seen = frames["runs"]["run"][frames["runs"]["arm"].isin(watched)]
        return frames | ({"watched": pd.DataFrame({"run": seen, "step": 0})} if watched else {})

    def run(run):
        run.configure(base=BASE, chunk=CHUNK)
        stages.compute(run, claims, smoke=(), make=make, watched=watched)  # pyright: ignore

    return Experiment("made_up", "?", "none", run, 1.0, goes_on=same_arms)


def test_what_an_earlier_result_has_is_not_made_again(tmp_path):
    before, calls = execute(_staged(["open"], [], broken=True), tmp_path / "before"), []
    whole = _staged(["clear", "open"], calls)
    after = execute(whole, tmp_path / "after", after=earlier(whole, before.folder, tmp_path / "after"))
    assert calls == [(("clear",), 0), (("open", "none"), 1)]
    assert after.manifest["config"]["after"]["finished"] == before.manifest["finished"]
    assert after.manifest["config"]["after"]["config"]["stopped_in_stage"] == 2
    assert after.manifest["seeds"] == list(stages.SEEDS)
    at_once = execute(whole, tmp_path / "at_once")
    for name in after.table_names:
        one, other = (each.table(name) for each in (after, at_once))
        keys = [key for key in ("run", "step", "metric", "low") if key in one]
        one, other = (each.sort_values(keys, ignore_index=True) for each in (one, other))
        pd.testing.assert_frame_equal(one, other)


@pytest.mark.parametrize("watched", [(), ("none",)])
def test_of_another_experiment_only_what_is_asked_and_nobody_has_to_watch_is_taken(watched, tmp_path):
    other = execute(_staged(["clear", "open"], [], watched=watched), tmp_path / "other")
    calls = []
    asking = replace(_staged(["open"], calls, watched=("none",)), name="asking")
    first = execute(asking, tmp_path / "first", after=earlier(asking, other.folder, tmp_path / "first"))
    assert calls == [(("none",), 0), (("none",), 1)]
    assert first.manifest["config"]["after"]["name"] == "made_up"
    runs, seen = first.table("runs"), first.table("watched")
    assert set(runs["arm"]) == {"open", "none"}
    assert len(runs) == 2 * len(stages.SEEDS) * stages.STARTS
    assert sorted(seen["run"]) == sorted(runs["run"][runs["arm"] == "none"])
    assert set(first.table("chunks")["run"]) == set(runs["run"])
    again = execute(asking, tmp_path / "again", after=earlier(asking, first.folder, tmp_path / "again"))
    assert len(calls) == 2
    assert len(again.table("watched")) == len(seen)


def test_of_a_run_that_is_there_twice_the_earlier_stays():
    def tables(run, *starts):
        runs = [{"run": f"{run} {start}", "arm": "a", "start": start, "seed": 0} for start in starts]
        return m.Tables({"runs": pd.DataFrame(runs), "chunks": pd.DataFrame(runs)[["run"]]})

    both = joined(tables("old", "s0", "s1"), tables("new", "s1", "s2"))
    assert [both.table(name)["run"].tolist() for name in ("runs", "chunks")] == [
        ["old s0", "old s1", "new s2"]
    ] * 2


def _described(folder, arm="long: no correction", start="chain 6", **config):
    """A stored result with one run."""

    def run(run):
        run.configure(**{"base": BASE, "chunk": CHUNK, "arms": {arm: asdict(ARMS[arm])}} | config)
        run.table("runs", [{"run": "r", "arm": arm, "start": start, "seed": 0}])

    return execute(Experiment("described", "?", "none", run, 1.0), folder)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"base": {**BASE, "prompts": 3}}, "made with base .*'prompts': 3"),
        ({"arms": {long(NONE): asdict(ARMS[long(TIS)])}}, f"'{long(NONE)}' was .*grpo.tis"),
        ({"start": "chain 5"}, "began from 'chain 5'"),
        (
            {"arms": {}, "after": {"config": {"arms": {long(NONE): asdict(ARMS[long(TIS)])}}}},
            f"'{long(NONE)}' was .*grpo.tis",
        ),
    ],
)
def test_other_runs_are_not_gone_on_from(changed, message, tmp_path):
    same_arms(_described(tmp_path / "same"))
    with pytest.raises(ValueError, match=message):
        same_arms(_described(tmp_path / "other", **changed))


def test_policies_that_another_processor_taught_are_not_gone_on_from(tmp_path, monkeypatch):
    kept = _described(tmp_path / "kept")
    taught = _described(tmp_path / "taught", "length: BF16", "recurrence 4")
    same_arms(taught)
    monkeypatch.setattr(dynamics_study.earlier, "processor", lambda: {"processor": "another"})
    same_arms(kept)
    with pytest.raises(ValueError, match="'recurrence 4' was taught on another processor"):
        same_arms(taught)


def test_only_a_result_with_arms_is_gone_on_from(tmp_path):
    folder = _described(tmp_path / "before").folder
    described = Experiment("described", "?", "none", lambda _: None, 1.0, goes_on=same_arms)
    bare = execute(replace(described, run=lambda run: run.configure()), tmp_path / "bare").folder
    asked = {
        "does not go on from earlier results": {"experiment": replace(described, goes_on=None)},
        "is the folder that is written": {"out": folder},
        "described has no arms to go on from": {"folder": bare},
        "does not hold a smoke run": {"smoke": True},
        "no finished run": {"folder": tmp_path},
    }
    fine = {"experiment": described, "folder": folder, "out": tmp_path / "out"}
    assert earlier(**fine).folder == folder
    for message, changed in asked.items():
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            earlier(**(fine | changed))
