"""Blocks of made-up runs: what goes on, what is kept, and what a resumed experiment runs."""

from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest

from experiments.arms import length
from experiments.arms.chains import NONE, TIS
from experiments.arms.settings import on_chains, on_recurrences
from experiments.regimes import BASE
from experiments.studies import resume, stages
from experiments.studies.resume import check_arms, merge_tables
from experiments.studies.runs import BLOCK, CHANGING, CHUNK
from simlab.studies import estimands as m
from simlab.studies.arms import Arm
from simlab.studies.contrasts import minus
from simlab.studies.experiment import Experiment, ExperimentContext, execute, find_resumable
from simlab.studies.futility import predictive_power
from simlab.studies.records import Trial, manipulation, primary
from simlab.studies.registration import LOOKS
from simlab.studies.samples import mean_of_policies
from simlab.studies.verdicts import decide_family, measure_trials

TOKEN = ("tokens_by_pi_train", "mean_rho_by_pi_train", "rms_log_rho_by_pi_train")


BLOCKS = len(LOOKS)
POLICIES = {f"s{number}": "" for number in range(BLOCK * BLOCKS)}
OPEN, CLEAR, HOPELESS, UNTREATED, CONTROL = (
    Arm(name, initial_policies=POLICIES) for name in ("open", "clear", "hopeless", "none", "control")
)


def _trial(claim, arm):
    better = primary(m.REWARD, minus(arm, UNTREATED), "positive", 0.1, because="made up")
    return Trial("made_up", (better,), claim=claim)


class Recorder:
    """A run of an experiment that keeps its tables in memory."""

    smoke, stops_for_futility = False, True

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
    """Blocks of arms whose reward is the arm's effect by initial policy."""

    def make(run, arms, block):
        calls.append((tuple(arms), block))
        keys = [(arm, BLOCK * block + start) for arm in arms for start in range(BLOCK)]
        rows = [{"run": f"{a} {s}", "arm": a.id, "initial_policy": f"s{s}", "seed": 0} for a, s in keys]
        rewards = np.repeat([effects(*key) for key in keys], CHUNK)
        steps = pd.DataFrame({"run": np.repeat([row["run"] for row in rows], CHUNK), "reward": rewards})
        names = ("discrepancy", "std_rho", "max_rho", *(set(CHANGING) - {"reward"}))
        steps = steps.assign(step=np.tile(np.arange(CHUNK), len(rows)), **dict.fromkeys(names, 1.0))
        runs = pd.DataFrame(rows).assign(status="finished", steps=CHUNK, steps_completed=CHUNK)
        token = [{"step": 0, "index": 0, "metric": name, "value": 1.0} for name in TOKEN]
        vectors = [{"run": row["run"], **value} for row in rows for value in token]
        return {"runs": runs, "steps": steps, "vectors": pd.DataFrame(vectors)}

    return make


NOISE = np.random.default_rng(0).normal(0, 0.1, (4, BLOCK * BLOCKS))
NOISE -= NOISE[:, :BLOCK].mean(1, keepdims=True)


def _effects(arm, policy):
    """Effects that are decided at the second look, at none, or have no chance at the first."""
    means = {"none": 0.0, "clear": 0.6, "open": 0.11, "hopeless": 0.0}
    noise = 10 if arm == HOPELESS else 1
    return means[arm.id] + noise * NOISE[list(means).index(arm.id), policy] * (arm != UNTREATED)


def test_blocks_go_on_for_what_is_neither_decided_nor_hopeless():
    trials = [_trial("H7", CLEAR), _trial("L3", OPEN), _trial("L4", HOPELESS)]
    run, calls = Recorder(), []
    stages.run_trials(run, trials, smoke=(), make=_made_up(_effects, calls))  # pyright: ignore
    first, second, third = (set(arms) for arms, _ in calls)
    assert [block for _, block in calls] == [0, 1, 2]
    assert first == {CLEAR, OPEN, HOPELESS, UNTREATED}
    assert second == {CLEAR, OPEN, UNTREATED}
    assert third == {OPEN, UNTREATED}
    found = {f.trial.claim: f for f in decide_family(measure_trials(m.Tables(run.tables), trials))}
    assert found["H7"].verdict == "reproduced"
    assert found["H7"].primary.num_policies == 16
    assert found["L3"].primary.num_policies == 24


def test_without_futility_a_hopeless_trial_has_all_policies():
    trials, calls = [_trial("L3", OPEN), _trial("L4", HOPELESS)], []
    run = Recorder()
    run.stops_for_futility = False
    stages.run_trials(run, trials, smoke=(), make=_made_up(_effects, calls))  # pyright: ignore
    assert [set(arms) for arms, _ in calls] == [{OPEN, HOPELESS, UNTREATED}] * 3


def test_a_study_goes_on_until_the_family_of_the_board_decides():
    def effects(arm, policy):
        return (0.2 if arm == CLEAR else 0.0) + NOISE[int(arm == CLEAR), policy]

    trials, calls = [_trial("H7", CLEAR)], {1: [], 1000: []}
    for family, made in calls.items():
        stages.run_trials(Recorder(), trials, (), _made_up(effects, made), family=family)  # pyright: ignore
    assert [len(made) for made in calls.values()] == [2, 3]


def test_a_gpu_makes_all_blocks_before_the_first_look(monkeypatch):
    asked = []
    made_up = _made_up(_effects, asked)

    def make(run, arms, block):
        if block is None:
            asked.append((tuple(arms), None))
            return {}
        return made_up(run, arms, block)

    monkeypatch.setattr(stages.jax, "default_backend", lambda: "gpu")
    forked = replace(OPEN, forked_from=UNTREATED)
    stages.run_trials(Recorder(), [_trial("C", CLEAR), _trial("O", forked)], (), make)
    (first, block), *looks = asked
    assert (set(first), block) == ({UNTREATED, CLEAR}, None)
    assert [number for _, number in looks] == list(range(BLOCKS))


def test_a_gpu_makes_only_what_a_resumed_result_lacks(monkeypatch):
    made, asked = Recorder(), []
    stages.run_trials(made, [_trial("O", OPEN)], (), _made_up(_effects, []))  # pyright: ignore
    monkeypatch.setattr(stages, "load_resumed", lambda *_: m.Tables(made.tables))
    monkeypatch.setattr(stages.jax, "default_backend", lambda: "gpu")
    stages.run_trials(Recorder(), [_trial("O", OPEN)], (), _made_up(_effects, asked))  # pyright: ignore
    assert asked == []


def test_interrupted_blocks_keep_what_is_finished():
    trial = _trial("L3", OPEN)

    def effects(arm, policy):
        if policy >= BLOCK:
            raise KeyboardInterrupt
        return _effects(arm, policy)

    run = Recorder()
    stages.run_trials(run, [trial], smoke=(), make=_made_up(effects, []))  # pyright: ignore
    assert len(run.tables["runs"]) == 2 * BLOCK
    assert run.config == {"stopped_in_block": 2}


def test_predictive_power_is_that_of_simulated_ends():
    rng = np.random.default_rng(3)
    criterion = _trial("H7", OPEN).primary
    values = rng.normal(0.25, 0.3, 8)
    chance = predictive_power(mean_of_policies(values), criterion, 24, 0.05)
    mean, error = values.mean(), values.std(ddof=1) / np.sqrt(8)
    truth = rng.normal(mean, error, 4000)
    final = (8 * mean + rng.normal(16 * truth, 4 * values.std(ddof=1))) / 24
    reach = 1.96 * values.std(ddof=1) / np.sqrt(24)
    decided = (final - reach > 0.1) | (final + reach < -0.1) | (np.abs(final) + reach < 0.1)
    # The spread comes from an interval of Student's law with 7 degrees of freedom.
    assert chance == pytest.approx(decided.mean(), abs=0.06)


def _staged(arms, calls, broken=False, diagnosed=()):
    """An experiment that tests whether `arms` have more reward than the untreated one."""
    trials = [_trial("L3", arm) for arm in arms]

    def effects(arm, policy):
        if broken and policy >= BLOCK:
            raise KeyboardInterrupt
        return _effects(arm, policy)

    made_up = _made_up(effects, calls)

    def make(run, arms, block):
        frames = made_up(run, arms, block)
        seen = frames["runs"]["run"][frames["runs"]["arm"].isin([arm.id for arm in diagnosed])]
        return frames | ({"diagnostics": pd.DataFrame({"run": seen, "step": 0})} if diagnosed else {})

    def run(run):
        run.configure(base=BASE, chunk=CHUNK)
        stages.run_trials(run, trials, smoke=(), make=make, diagnosed=diagnosed)  # pyright: ignore

    return Experiment("made_up", "?", "none", run, 1.0, check_resume=partial(check_arms, arms={}))


def test_resume_keeps_the_runs_of_an_earlier_result(tmp_path):
    before, calls = execute(_staged([OPEN], [], broken=True), tmp_path / "before"), []
    whole = _staged([CLEAR, OPEN], calls)
    after = execute(
        whole, tmp_path / "after", resume_from=find_resumable(whole, before.folder, tmp_path / "after")
    )
    assert [(set(arms), block) for arms, block in calls] == [
        ({CLEAR}, 0),
        ({CLEAR, OPEN, UNTREATED}, 1),
        ({OPEN, UNTREATED}, 2),
    ]
    assert after.manifest["config"]["resumed_from"]["finished"] == before.manifest["finished"]
    assert after.manifest["config"]["resumed_from"]["config"]["stopped_in_block"] == 2
    assert after.manifest["seeds"] == [0]
    at_once = execute(whole, tmp_path / "at_once")
    for name in after.table_names:
        one, other = (each.table(name) for each in (after, at_once))
        keys = [key for key in ("run", "step", "metric", "low") if key in one]
        one, other = (each.sort_values(keys, ignore_index=True) for each in (one, other))
        pd.testing.assert_frame_equal(one, other)


@pytest.mark.parametrize("diagnosed", [(), (UNTREATED,)])
def test_resume_drops_diagnostics_of_another_experiment(diagnosed, tmp_path):
    other = execute(_staged([CLEAR, OPEN], [], diagnosed=diagnosed), tmp_path / "other")
    calls = []
    asking = replace(_staged([OPEN], calls, diagnosed=(UNTREATED,)), name="asking")
    first = execute(
        asking, tmp_path / "first", resume_from=find_resumable(asking, other.folder, tmp_path / "first")
    )
    assert calls == [((UNTREATED,), block) for block in range(BLOCKS)]
    assert first.manifest["config"]["resumed_from"]["name"] == "made_up"
    runs, seen = first.table("runs"), first.table("diagnostics")
    assert set(runs["arm"]) == {"open", "none"}
    assert len(runs) == 2 * BLOCKS * BLOCK
    assert sorted(seen["run"]) == sorted(runs["run"][runs["arm"] == "none"])
    assert set(first.table("chunks")["run"]) == set(runs["run"])
    again = execute(
        asking, tmp_path / "again", resume_from=find_resumable(asking, first.folder, tmp_path / "again")
    )
    assert len(calls) == BLOCKS
    assert len(again.table("diagnostics")) == len(seen)


def test_of_a_run_that_is_there_twice_the_earlier_stays():
    def tables(run, *starts):
        runs = [{"run": f"{run} {start}", "arm": "a", "initial_policy": start, "seed": 0} for start in starts]
        return m.Tables({"runs": pd.DataFrame(runs), "chunks": pd.DataFrame(runs)[["run"]]})

    both = merge_tables(tables("old", "s0", "s1"), tables("new", "s1", "s2"))
    assert [both.table(name)["run"].tolist() for name in ("runs", "chunks")] == [
        ["old s0", "old s1", "new s2"]
    ] * 2


KNOWN = {arm.id: arm for arm in (on_chains(NONE), on_recurrences(length.BF16))}


def _described(folder, arm=on_chains(NONE), initial_policy="chain 100", **config):  # noqa: B008
    """A stored result with one run."""

    def run(run):
        run.configure(**{"base": BASE, "chunk": CHUNK, "arms": {arm.id: arm.recorded}} | config)
        run.table("runs", [{"run": "r", "arm": arm.id, "initial_policy": initial_policy, "seed": 0}])

    return execute(Experiment("described", "?", "none", run, 1.0), folder)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"base": {**BASE, "prompts_per_step": 3}}, "made with base .*'prompts_per_step': 3"),
        ({"arms": {on_chains(NONE).id: on_chains(TIS).recorded}}, "'chain: no correction' was .*grpo.tis"),
        ({"initial_policy": "chain 5"}, "has no initial policy 'chain 5' now"),
        (
            {
                "arms": {},
                "resumed_from": {"config": {"arms": {on_chains(NONE).id: on_chains(TIS).recorded}}},
            },
            "'chain: no correction' was .*grpo.tis",
        ),
    ],
)
def test_other_runs_are_not_gone_on_from(changed, message, tmp_path):
    check_arms(_described(tmp_path / "same"), KNOWN)
    with pytest.raises(ValueError, match=message):
        check_arms(_described(tmp_path / "other", **changed), KNOWN)


def test_resume_rejects_policies_trained_on_another_cpu(tmp_path, monkeypatch):
    kept = _described(tmp_path / "kept")
    taught = _described(tmp_path / "taught", on_recurrences(length.BF16), "recurrence 28")
    check_arms(taught, KNOWN)
    monkeypatch.setattr(resume, "processor", lambda: {"processor": "another"})
    check_arms(kept, KNOWN)
    with pytest.raises(ValueError, match="'recurrence 28' was trained on another CPU"):
        check_arms(taught, KNOWN)


def test_only_a_result_with_arms_is_gone_on_from(tmp_path):
    folder, check = _described(tmp_path / "before").folder, partial(check_arms, arms=KNOWN)
    described = Experiment("described", "?", "none", lambda _: None, 1.0, check_resume=check)
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


@pytest.mark.parametrize(("noise", "count"), [(0.02, 2 * BLOCK), (0.4, 3 * BLOCK)])
def test_trial_goes_on_while_a_premise_is_inconclusive(noise, count):
    premise = manipulation(m.REWARD, minus(UNTREATED, CONTROL), "zero", 0.1, because="made up")
    better = primary(m.REWARD, minus(CLEAR, UNTREATED), "positive", 0.1, because="made up")
    trial, run, calls = Trial("made_up", (better, premise), claim="H7"), Recorder(), []

    def effects(arm, policy):
        return noise * NOISE[3][policy] / 0.1 if arm == CONTROL else _effects(arm, policy)

    stages.run_trials(cast(Any, run), (trial,), (), _made_up(effects, calls), family=1)
    assert run.tables["runs"].groupby("arm")["initial_policy"].nunique().tolist() == [count] * 3


def test_block_of_other_arms_alone_has_the_same_tables(tmp_path, monkeypatch):
    def make(_run, arms, _block):
        return {"runs": pd.DataFrame({"arm": [arm.id for arm in arms]})}

    monkeypatch.setattr(stages, "run_arms", make)
    others = {phase: (is_marked, make) for phase, (is_marked, _) in stages.OTHERS.items()}
    monkeypatch.setattr(stages, "OTHERS", others)
    forked, variant = Arm("fork", forked_from=UNTREATED), Arm("variant", own_objective="variant")
    run = ExperimentContext("made_up", tmp_path)
    for asked, made in (
        ([forked], ["none", "fork"]),
        ([variant, CLEAR, forked], ["clear", "fork", "variant"]),
    ):
        frames = stages.make_block(run, asked, 0, baseline=UNTREATED, diagnostics={})
        assert frames["runs"]["arm"].tolist() == made
    assert sorted(run.timings) == ["forks", "variants"]
