"""Runs with diagnostics between steps, forks, and runs whose noise follows another run."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from experiments.arms.chains import NONE, TIS
from experiments.arms.forks import EARLY_FORK, FORK
from experiments.arms.noise import FRESH, LARGER, LARGER_FRESH
from experiments.arms.settings import from_new_policies, on_chains
from experiments.regimes import BASE
from experiments.studies import diagnostics, observed_runs
from experiments.studies.diagnostics import DIAGNOSTIC_CATALOG
from experiments.studies.matched_noise import FollowingNoise, read_targets, run_matched
from experiments.studies.observed_runs import build_diagnostics, observe_runs
from experiments.studies.repeated_runs import run_forks, start_runs
from experiments.studies.runs import (
    CHUNK,
    SMOKE,
    SMOKE_RUNS_PER_BATCH,
    RunSpec,
    block_specs,
    run_sweep,
)  # fmt: skip
from simlab.engines.constant import ConstantEngine
from simlab.objectives import TokenBatch, get_objective
from simlab.studies.experiment import ExperimentContext
from simlab.sweeps import compilation, recipe_of, run_config
from simlab.training.diagnostics import DiagnosticContext
from tests.training.recipes import assert_same_tree, differ


@pytest.mark.slow
@pytest.mark.usefixtures("quick_programs")
@pytest.mark.parametrize("name", DIAGNOSTIC_CATALOG)
def test_every_look_sees_finite_numbers_of_every_policy(name):
    run_specs = [RunSpec(NONE, "s", seed, {**SMOKE, "objective": "grpo", "seed": seed}) for seed in (0, 1)]
    recipe, _, states = start_runs(run_specs, Path("unused"))
    seen = build_diagnostics((name,))(recipe, states, states.params)
    assert seen
    for value in seen.values():
        assert value.shape[0] == len(run_specs)
        # Policies that earn nothing have no gradient to share out.
        assert np.isfinite(value).all() or name == "last minibatch"


@pytest.mark.slow
@pytest.mark.usefixtures("quick_programs")
def test_build_diagnostics_accepts_constant_engines():
    spec = RunSpec(NONE, "s", 0, {**SMOKE, "objective": "grpo", "seed": 0, "engines": "fp16/fp16"})
    recipe, shared, states = start_runs([spec], Path("unused"))
    held, plain = (
        build_diagnostics(("validation",))(each, states, states.params) for each in (shared, recipe)
    )
    assert isinstance(shared.engines.train, ConstantEngine)
    np.testing.assert_array_equal(held["held_out_train"], plain["held_out_train"])
    np.testing.assert_array_equal(held["held_out_infer"], held["held_out_train"])


@pytest.mark.parametrize(
    ("objective", "right", "wrong", "beyond", "before_clip", "after"),
    [
        ("gspo", 0.8, 1.2, 0, 1, 1),
        ("gspo", 1.2, 0.8, 1, 1, 0),
        ("dfpo_min", 0.8, 1.2, 0, 0.8**2, 0.8**2),
        ("dfpo_min", 1.2, 0.8, 1, 0.8**2, (1 - 3e-4) ** 2),
    ],
)
def test_asym_of_the_last_minibatch(objective, right, wrong, beyond, before_clip, after, monkeypatch):
    """Weights of a right and a wrong answer: sqrt(2) A = 1 and -1, so 2 Asym is their variance."""
    logp = jnp.log(jnp.full((2, 3), 0.5))
    ratios = jnp.log(jnp.array([[right], [wrong]]))
    batch = TokenBatch(
        logp=logp + ratios,
        logp_train=logp,
        logp_infer=logp,
        mask=jnp.ones((2, 3), bool),
        rewards=jnp.array([1.0, 0.0]),
        group_size=2,
    )
    trajectory = SimpleNamespace(responses=jnp.arange(6).reshape(2, 3))
    before = replace(batch, logp=logp)
    monkeypatch.setattr(diagnostics, "_last_minibatch", lambda _: (trajectory, None, before, batch))
    monkeypatch.setattr(diagnostics, "score_norms", lambda *_: jnp.ones((2, 3)))
    model = SimpleNamespace(vocab_size=6)
    context: Any = SimpleNamespace(objective=get_objective(objective), recipe=SimpleNamespace(model=model))
    seen = {name: float(value) for name, value in diagnostics.last_minibatch(context).items()}
    assert seen["beyond_clip"] == beyond
    assert seen["asym_before_clip"] / seen["asym_of_ones"] == pytest.approx(before_clip, rel=1e-5)
    assert seen["asym"] / seen["asym_of_ones"] == pytest.approx(after, rel=1e-5)
    assert seen["weight_std"] == pytest.approx(0.2, rel=1e-5)
    # Tokens that occur once each: the most frequent quarter is the first two of six, cut at 1.5.
    assert 0 <= seen["push_frequent"] <= seen["push"]


def test_difficulty_is_the_reward_of_the_initial_policy(monkeypatch):
    initial, trained, fp8_costs = jnp.array([[0.7], [0.1], [0.5], [0.3]]), 0.2, 0.1

    def rewards_by_prompt(recipe, params, engine, key, prompts):
        assert prompts == len(initial)
        assert key == context.key
        costs = fp8_costs if engine is diagnostics.FP8 else 0.0
        two_responses = jnp.array([[-0.05, 0.05]])
        return initial + two_responses + params - costs

    monkeypatch.setattr(diagnostics, "rewards_by_prompt", rewards_by_prompt)
    recipe: Any = SimpleNamespace(engines=SimpleNamespace(train=None))
    context: Any = SimpleNamespace(recipe=recipe, base=0.0, params=trained, key="a key")
    seen = diagnostics.by_difficulty(context, prompts=len(initial))
    for engine, costs in (("fp8", fp8_costs), ("bf16", 0.0)):
        quarters = [float(seen[f"held_out_{engine}_{quarter}"]) for quarter in diagnostics.QUARTERS]
        assert quarters == pytest.approx([each + trained - costs for each in (0.1, 0.3, 0.5, 0.7)])
        assert float(seen[f"held_out_{engine}"]) == pytest.approx(np.mean(quarters))


@pytest.mark.slow
@pytest.mark.usefixtures("quick_programs")
def test_last_minibatch_follows_the_updates_before_it():
    spec = RunSpec(NONE, "s", 0, {**SMOKE, "objective": "gspo", "minibatches": 4, "seed": 0})
    recipe, _, states = start_runs([spec], Path("unused"))
    state = jax.tree.map(lambda x: x[0], states)
    rows = recipe.group_size

    @jax.jit
    def last_minibatch(rewards):
        context = DiagnosticContext(recipe, state)
        context.__dict__["sampled"] = replace(context.sampled, rewards=rewards)
        return diagnostics._last_minibatch(context)[1:]

    def params_with(rewards: np.ndarray) -> Any:
        params, before, batch = last_minibatch(jnp.asarray(rewards, jnp.float32))
        assert batch.mask.shape[0] == rows
        assert np.any(batch.logp != before.logp)
        return params

    one = np.tile([0.0, 1.0], 2 * rows)
    earlier, later = one.copy(), one.copy()
    earlier[0], later[-1] = 1, 0
    first = params_with(one)
    assert_same_tree(first, params_with(later))
    assert differ(first, params_with(earlier))


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, 2])
def test_observed_runs_are_those_of_a_sweep(tmp_path, monkeypatch, processes):
    # Two batches.
    wanted = (
        block_specs(on_chains(NONE), None, smoke=True) + block_specs(on_chains(TIS), None, smoke=True)[:1]
    )
    assert len(wanted) == SMOKE_RUNS_PER_BATCH + 1
    monkeypatch.setattr(observed_runs, "count_processes", lambda _: processes)
    observed, plain = (
        ExperimentContext("observed", tmp_path / name / "out", smoke=True) for name in ("one", "other")
    )
    rows = observe_runs(observed, [(("both engines",), wanted)])
    tables, alone = run_sweep(observed, wanted), run_sweep(plain, wanted)
    for name in ("runs", "steps", "vectors"):
        pd.testing.assert_frame_equal(tables[name], alone[name])
    assert sorted(rows["run"].unique()) == sorted(tables["runs"]["run"])
    assert rows["step"].tolist() == [10, 20] * len(wanted)
    assert np.isfinite(rows[["held_out_infer", "held_out_train"]].to_numpy()).all()
    pd.testing.assert_frame_equal(observe_runs(observed, [(("both engines",), wanted)]), rows)


def test_diagnostics_of_other_code_lie_elsewhere(tmp_path, monkeypatch):
    observation = observed_runs.Observation(tmp_path, ("mismatch",), 20, 8)
    before, changed = observation.file("key"), tmp_path / "diagnostics.py"
    assert observation.file("key") == before
    changed.write_text(Path(diagnostics.__file__).read_text() + "# changed")
    monkeypatch.setattr(diagnostics, "__file__", str(changed))
    assert observation.file("key") != before


def fail(*_: Any) -> None:
    """Stand for a batch whose computation fails."""
    raise RuntimeError("made up")


def end_abruptly(*_: Any) -> None:
    """Stand for a batch that the system kills."""
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("limit", "kept"), [(0.0, []), (np.inf, ["program"])])
def test_process_forgets_its_programs_above_the_limit(limit, kept, monkeypatch):
    programs = {"program": None}
    monkeypatch.setattr(compilation, "_COMPILED", programs)
    monkeypatch.setattr(jax, "clear_caches", lambda: None)
    monkeypatch.setattr(observed_runs, "observe_batch", lambda *_: None)
    monkeypatch.setattr(observed_runs, "MEMORY_LIMIT", limit)
    observed_runs._observe_here(cast(Any, None), [])
    assert list(programs) == kept


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "message"), [(fail, "made up"), (end_abruptly, "killed, perhaps")])
def test_an_error_in_one_process_stops_the_others(batch, message):
    with pytest.raises(RuntimeError, match=message):
        observed_runs._compute_in_processes(batch, [()] * 3, 2, lambda: None)
    assert not multiprocessing.active_children()


@pytest.mark.slow
@pytest.mark.usefixtures("quick_programs")
def test_a_batch_whose_diagnostics_fail_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(observed_runs, "build_diagnostics", lambda *_, **__: fail)
    wanted = block_specs(on_chains(NONE), None, smoke=True)
    with pytest.raises(RuntimeError, match="made up"):
        observe_runs(
            ExperimentContext("observed", tmp_path / "out", smoke=True), [(("both engines",), wanted)]
        )
    assert not list((tmp_path / "cache").rglob("diagnostics/*/*.parquet"))
    assert not list((tmp_path / "cache").rglob("store/*.json"))


ORPHANS = """
from experiments.studies.observed_runs import _compute_in_processes
from tests.experiments.test_repeated_runs import print_and_sleep
_compute_in_processes(print_and_sleep, [()] * 2, 2, lambda: None)
"""


def print_and_sleep(*_: Any) -> None:
    """Stand for a batch that takes long."""
    os.write(1, f"{os.getpid()}\n".encode())  # one call: two processes print at once
    time.sleep(600)


@pytest.mark.slow
def test_processes_end_with_their_parent():
    command = [sys.executable, "-c", ORPHANS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        children = [int(parent.stdout.readline()) for _ in range(2)]
        parent.kill()
    deadline = time.monotonic() + 60
    while any(map(is_alive, children)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def is_alive(pid: int) -> bool:
    """Return whether a process runs: a zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.usefixtures("quick_programs")
def test_forks_continue_the_run(tmp_path):
    run = ExperimentContext("forked", tmp_path / "out", smoke=True)
    forks = run_forks(run, (FORK, EARLY_FORK), 0)
    plain = run_sweep(run, block_specs(on_chains(NONE), None, smoke=True))
    for metric in ("entropy", "rms_log_rho"):
        whole = plain["steps"].set_index(["run", "step"])[metric]
        half = forks["steps"].set_index(["run", "step"])[metric]
        for key, policy in plain["runs"].set_index("run")["initial_policy"].items():
            (name,) = (run for run in forks["runs"]["run"] if run.startswith(f"{FORK} {policy} "))
            # Another compiled function: sums differ in the last bits.
            rest = whole[key][whole[key].index >= CHUNK].tolist()
            assert half[name].tolist() == pytest.approx(rest, rel=1e-5)
            (other,) = (run for run in forks["runs"]["run"] if run.startswith(f"{EARLY_FORK} {policy} "))
            assert half[other].tolist() != pytest.approx(rest, rel=1e-5)
    assert np.isfinite(forks["diagnostics"][["rms_log_rho", "held_out_infer"]].to_numpy()).all()


def test_noise_follows_the_mismatch_of_another_run():
    # RMS log rho: a power of the noise that the controller does not know.
    targets = np.stack([np.repeat([0.3, 1.2], 30), np.repeat([0.1, np.nan], 30)])

    class Program:
        def advance(self, steps, recipe, state):
            assert steps == 1
            return state, [{"rms_log_rho": 0.7 * np.asarray(recipe.sampling.noise.scale) ** 1.5}]

    config = run_config(BASE, {**on_chains(FRESH).changes, "warm_start": None})
    recipe = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), recipe_of(config))
    noise = FollowingNoise(cast(Any, Program()), targets, "fresh")
    steps = [noise.advance(recipe, cast(Any, None))[1][0]["rms_log_rho"] for _ in range(60)]
    reached = np.stack(steps, axis=1)
    assert reached[:, [29]] == pytest.approx(targets[:, [29]], rel=0.01)
    assert reached[0, 59] == pytest.approx(1.2, rel=0.01)
    # A run that diverged has no further target: the last scale stays.
    assert reached[1, 30:] == pytest.approx(reached[1, 30])


@pytest.mark.slow
@pytest.mark.usefixtures("quick_programs")
def test_matched_runs_are_as_noisy_as_those_they_follow(tmp_path):
    run = ExperimentContext("matched", tmp_path / "out", smoke=True)
    arm = from_new_policies(LARGER_FRESH)
    frames = run_matched(run, [arm], 0)
    targets = LARGER * read_targets(run, block_specs(from_new_policies(NONE), None, smoke=True))
    reached = frames["steps"].pivot_table(index="run", columns="step", values="rms_log_rho").to_numpy()
    assert reached.shape == targets.shape
    assert np.abs(np.log(reached / targets)).mean() < 0.25
    assert set(frames["runs"]["arm"]) == {arm.id}
    assert frames["steps"]["noise_scale"].between(0.01, 0.1).all()
    assert frames["diagnostics"]["step"].unique().tolist() == [10, 20]
