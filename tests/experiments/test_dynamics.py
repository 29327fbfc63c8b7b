"""Rules and measures of the experiments about dynamics, on made-up runs; the arms, without running them."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from experiments.arms.catalog import ARMS, EARLY_FORK, FORK, LARGER, LARGER_NOISES, LEVELS, MATCHED
from experiments.arms.chains import BF16, EXACT, NONE, TIS
from experiments.arms.names import chain_arm, moe_arm, new_arm
from experiments.papers import acrl, vexact
from experiments.regimes import BASE, MEASURED, initial_mismatch
from experiments.studies import acrl_variants, diagnostics, repeated_runs, stages
from experiments.studies.diagnostics import DIAGNOSTIC_CATALOG
from experiments.studies.leaderboard import DENSE
from experiments.studies.matched_noise import FollowingNoise, read_targets, run_matched
from experiments.studies.repeated_runs import (
    AT_ONCE,
    build_diagnostics,
    observe_runs,
    run_forks,
    start_runs,
)
from experiments.studies.runs import (
    CHUNK,
    SMOKE,
    SMOKE_RUNS_PER_BATCH,
    RunSpec,
    find_changes,
    pool_bins,
    run_specs,
    run_sweep,
    summarize_chunks,
    with_flips,
    with_provenance,
)  # fmt: skip
from simlab.core.experiment import Run
from simlab.core.manifest import processor_family
from simlab.core.paths import committed_results
from simlab.core.results import Results
from simlab.engines.constant import ConstantEngine
from simlab.objectives import TokenBatch, get_objective
from simlab.studies import Measured
from simlab.studies import estimands as m
from simlab.studies.contrasts import CollapseRate, CollapsesSooner, LeavesBand, Share, mean_of, minus, slope
from simlab.studies.records import COLLAPSE, COLLAPSE_TIME, Trial, arms_of, manipulation, primary
from simlab.studies.remedy_ranking import read_leaderboard
from simlab.studies.samples import Exact
from simlab.studies.verdicts import decide_family, measure_trials
from simlab.sweeps import recipe_of, run_config
from simlab.training.diagnostics import DiagnosticContext

STEPS = 100


def _results(rewards, rms=None, steps=STEPS):
    """One run per arm and start; `rewards` and `rms` map arms to curves, shifted by the start."""
    runs, rows = [], []
    for arm, curve in rewards.items():
        for start in range(4):
            key = f"{arm} {start}"
            runs.append({"run": key, "arm": arm, "initial_policy": f"s{start}", "seed": 0, "steps": steps})
            values = np.broadcast_to(curve, steps) + 0.01 * start
            spread = np.broadcast_to(1.0 if rms is None else rms[arm], steps)
            numbers = {"reward": values, "rms_log_rho": spread, "discrepancy": spread, "std_rho": spread}
            numbers |= {"max_rho": spread, "entropy": spread, "grad_norm": spread}
            rows.append(
                pd.DataFrame({"run": key, "step": np.arange(steps), "abs_seq_log_ratio": spread} | numbers)
            )
    runs = pd.DataFrame(runs).assign(status="finished", steps_completed=steps)
    return m.Tables({"runs": runs, "chunks": summarize_chunks(pd.concat(rows))})


def _trial(claim, *criteria):
    return Trial("made_up", criteria, claim=claim)


def _decided(results, *trials):
    return decide_family(measure_trials(results, trials))


def test_contrasts_see_through_the_starts():
    fall = np.linspace(0.9, 0.1, STEPS)
    results = _results({"a": 0.9, "b": 0.6, "c": fall})
    better = primary(m.REWARD, minus("a", "b"), "positive", 0.05, because="made up")
    worse = primary(m.REWARD, minus("a", "b"), "negative", 0.05, because="made up")
    found = _decided(results, _trial("H7", better), _trial("L3", worse))
    assert [f.verdict for f in found] == ["reproduced", "contradicted"]
    # Starts differ by 0.01 each, arms do not: the pairs agree to the last bit of float32.
    assert found[0].primary.estimate == pytest.approx(0.3, abs=1e-6)
    assert found[0].primary.ci_high - found[0].primary.ci_low < 1e-5
    line = primary(m.REWARD, slope({1.0: "a", 2.0: "b"}, "x"), "negative", 0.05, because="made up")
    assert _decided(results, _trial("H9", line))[0].primary.estimate == pytest.approx(-0.3, abs=1e-6)


def test_share_of_the_loss_is_a_ratio_of_means():
    results = _results({"remedy": 0.5, "none": 0.2, "control": 0.8})
    share = primary(m.REWARD, Share("remedy", "none", "control"), "positive", 0.2, because="made up")
    (found,) = _decided(results, _trial("L6", share))
    assert found.primary.estimate == pytest.approx(0.5, abs=1e-5)
    assert found.verdict == "reproduced"


def test_without_its_premise_nothing_is_said():
    results = _results({"a": 0.9, "b": 0.9})
    part = primary(m.REWARD, minus("a", "b"), "zero", 0.05, because="made up")
    premise = manipulation(m.PEAK_REWARD, minus("a", "b"), "negative", 0.05, because="made up")
    bare, given = _decided(results, _trial("H7", part), _trial("L3", part, premise))
    assert bare.verdict == "reproduced"
    assert given.verdict == "premise absent"
    # An arm that was not run: nothing is measured.
    absent = primary(m.REWARD, mean_of("d"), "zero", 1.0, because="made up")
    assert not measure_trials(results, [_trial("H7", absent)])


def test_collapse_is_against_the_control_of_the_same_policy():
    late = np.where(np.arange(STEPS) < 50, 0.8, 0.1)
    later = np.where(np.arange(STEPS) < 70, 0.8, 0.1)
    views = m.Views(_results({"late": late, "later": later, "poor": 0.5, "control": 0.8}))

    def sample(contrast, estimand=COLLAPSE):
        return contrast.measure(views, estimand)

    assert sample(CollapseRate("late", "control")).estimate == 1
    assert sample(CollapseRate("poor", "control")).estimate == 0
    assert sample(CollapsesSooner("late", "later", "control"), COLLAPSE_TIME).estimate == 0.5
    assert sample(CollapsesSooner("poor", "later", "control"), COLLAPSE_TIME).estimate == -0.5
    # Two runs that never collapse say nothing of their order.
    assert sample(CollapsesSooner("poor", "control", "control"), COLLAPSE_TIME).interval(0.05) == (-0.5, 0.5)
    assert sample(LeavesBand("late", "control", 2.0, -1), m.REWARD).estimate == 1
    assert sample(LeavesBand("late", "control", 2.0, 1), m.REWARD).estimate == 0


def test_families_of_processors_that_disagree_are_a_conflict():
    results = _results({"a": 0.9, "b": 0.6})
    runs, chunks = results.table("runs"), results.table("chunks")
    other = runs["initial_policy"].isin(["s2", "s3"])
    runs["processor_family"] = np.where(other, "Y", "X")
    moved = chunks["run"].isin(runs["run"][other & (runs["arm"] == "b")])
    chunks["reward"] = chunks["reward"].where(~moved, 2.0)
    better = primary(m.REWARD, minus("a", "b"), "positive", 0.05, because="made up")
    (found,) = measure_trials(m.Tables({"runs": runs, "chunks": chunks}), [_trial("H7", better)])
    assert found.conflict.startswith("the sign differs between processor families: X 0.3, Y -1")


def test_growth_and_gain_of_a_made_up_run():
    rms = np.where(np.arange(STEPS) < 50, 0.1, 0.4)
    views = m.Views(_results({"a": 0.8}, {"a": rms}))  # pyright: ignore
    view = views.arms["a"]["s0", 0]
    assert pytest.approx(np.log(4), rel=1e-6) == m.GROWTH(view)
    # It never gains that: all its steps count.
    assert m.steps_to_gain(0.1)(view) == pytest.approx(np.log(STEPS))
    risen = m.Views(_results({"a": np.where(np.arange(STEPS) < 20, 0.2, 0.8)}))  # pyright: ignore
    # The third chunk makes a mean of 0.4.
    assert m.steps_to_gain(0.1)(risen.arms["a"]["s0", 0]) == pytest.approx(np.log(3 * CHUNK))


def test_a_share_of_tokens_depends_on_the_engine_that_sorts_them():
    # A token that training finds rare, one that inference does, a common one on which they agree, padding.
    logp = {
        "logp_train": jnp.log(jnp.array([[0.001, 0.2, 0.95, 0.001]])),
        "logp_infer": jnp.log(jnp.array([[0.1, 0.002, 0.95, 0.5]])),
        "mask": jnp.array([[True, True, True, False]]),
    }
    batch = TokenBatch(logp=logp["logp_train"], **logp, rewards=jnp.zeros(1), group_size=1)
    seen = diagnostics.by_either_engine(cast("Any", SimpleNamespace(batch=batch)))
    view = m.View(10, False, *(pd.DataFrame(),) * 3, diagnostics=pd.DataFrame([seen, seen]).astype(float))
    shares = {
        (group, engine): m.share_higher(group, engine)(view)
        for group in ("rare", "common")
        for engine in ("train", "infer")
    }
    assert shares == {
        ("rare", "train"): 0, ("rare", "infer"): 1, ("common", "train"): 0.5, ("common", "infer"): 0.5
    }  # fmt: skip


def test_lead_is_from_the_rise_to_the_fall_of_the_reward():
    steps = np.arange(STEPS)
    reward, rms = np.where(steps < 60, 0.8, 0.0), np.where(steps < 20, 0.1, 0.3)
    views = m.Views(_results({"falls": reward, "stays": 0.8}, {"falls": rms, "stays": rms}))  # pyright: ignore
    falls, stays = (views.arms[arm]["s0", 0] for arm in ("falls", "stays"))
    # A mean over five chunks is below half once three of them have no reward.
    assert m.lead("rms_log_rho", 2.0, "twice")(falls) == pytest.approx(np.log(90 / 30))
    assert m.lead("rms_log_rho", 2.0, "twice")(stays) == pytest.approx(np.log(STEPS / 30))
    assert np.isnan(m.lead("rms_log_rho", 4.0, "four times")(falls))
    assert m.largest_growth("rms_log_rho", "RMS")(falls) == pytest.approx(np.log(3))


def test_chunks_changes_and_bins_of_a_step_table():
    steps = pd.DataFrame({"run": "r", "step": np.arange(40)})
    for name in ("reward", "rms_log_rho", "abs_seq_log_ratio", "entropy", "grad_norm"):
        steps[name] = np.where(steps["step"] < 25, 0.0, 1.0) + 0.01 * np.sin(steps["step"])
    steps = steps.assign(discrepancy=0.5, std_rho=1.0, max_rho=np.arange(40.0))
    table = summarize_chunks(steps)
    assert table["max_rho"].tolist() == [9, 19, 29, 39]
    assert table["discrepancy_std"].tolist() == [0] * 4
    assert set(find_changes(steps)["step"]) == {25}
    rows = [(s, i, n, v) for s in (0, 1) for i in (0, 1) for n, v in _bin(s, i).items()]
    vectors = pd.DataFrame(rows, columns=["step", "index", "metric", "value"]).assign(run="r")
    found = pool_bins(vectors).set_index("low")
    # Tokens 1 and 3 with mean rho 1 and 2; the other bin has none.
    assert found.loc[0.0, "mean_rho"] == pytest.approx(1.75)
    assert found.loc[0.0, "rms_log_rho"] == pytest.approx(np.sqrt((1 * 1 + 3 * 4) / 4))
    assert np.isnan(found["mean_rho"].iloc[1])


def _bin(step, index):
    tokens = 0.0 if index else (1.0, 3.0)[step]
    value = np.nan if index else (1.0, 2.0)[step]
    return {
        "tokens_by_pi_train": tokens,
        "mean_rho_by_pi_train": value,
        "rms_log_rho_by_pi_train": value,
    }


def test_chunks_hold_router_flips_of_moe_runs_alone():
    chunks = pd.DataFrame({"run": ["a", "a", "b"], "step": [0, CHUNK, 0]})
    rows = [("a", step, layer, float(step + layer)) for step in range(2 * CHUNK) for layer in (0, 1)]
    vectors = pd.DataFrame(rows, columns=["run", "step", "index", "value"]).assign(metric="router_flips")
    flips = with_flips(chunks, vectors)["router_flips"]
    assert [*flips[:2]] == [CHUNK / 2, 1.5 * CHUNK]
    assert np.isnan(flips[2])
    assert "router_flips" not in with_flips(chunks, vectors.assign(metric="other"))


def test_every_arm_is_a_run_and_no_two_are_the_same():
    seen = {}
    for name, arm in ARMS.items():
        wanted = run_specs(name, 0, smoke=False)
        assert len({place.initial_policy for place in wanted}) == len(arm.initial_policies)
        config = run_config(BASE, wanted[0].changes)
        if arm.x_factor is None:
            assert repr(config) not in seen, (name, seen[repr(config)])
            seen[repr(config)] = name
        else:
            assert ARMS[arm.x_from].initial_policies == arm.initial_policies


def test_trials_about_other_arms():
    trial = acrl.A3.trial("acrl_dynamics")
    assert set(arms_of([trial])) == {acrl.ACRL, acrl.TIS5}
    (moved,) = (trial for trial in acrl.OTHER_LEVELS["batch"] if trial.claim == "A3")
    assert set(arms_of([moved])) == {LEVELS["batch"], acrl.TIS5}
    assert f"{LEVELS['batch']} minus {acrl.TIS5}" in moved.text


def _with_engines(results):
    runs = results.tables["runs"]
    truncated = runs["arm"].isin([chain_arm(NONE), chain_arm(EXACT), chain_arm(TIS)])
    engines = np.where(truncated, "fp8-e4m3-truncated", "bf16")
    return m.Tables(results.tables | {"runs": runs.assign(infer_engine=engines)})


def test_leaderboard_compares_exact_engine_with_tis():
    rewards = {chain_arm(NONE): 0.2, chain_arm(BF16): 0.8, chain_arm(EXACT): 0.75, chain_arm(TIS): 0.3}
    results = _with_engines(_results(rewards | {moe_arm(TIS): 1.0}))
    (evidence,) = decide_family(DENSE.collect_evidence(results))
    assert evidence.primary.estimate == pytest.approx(0.75)
    assert evidence.verdict == "reproduced"
    recovered = read_leaderboard(results, vexact.V6.trial(DENSE.experiment)).recovered
    assert [row.arm for row in recovered] == [chain_arm(EXACT), chain_arm(TIS)]
    partial = _with_engines(_results({chain_arm(NONE): 0.2, chain_arm(TIS): 0.5}))
    assert DENSE.collect_evidence(partial) == []


def test_estimates_of_other_levels_stand_in_the_note():
    trial = acrl.A3.trial("acrl_dynamics")
    samples = (Exact(2.0),) * len(trial.criteria)
    noted = acrl.with_levels(Measured(trial, samples, "stage 2"), {"batch": [Measured(trial, samples)]})
    assert noted.note == "stage 2; Y per batch: 2"


def test_a_rule_names_its_arms_and_margins():
    text = stages.write_rule(
        [_trial("H7", primary(m.REWARD, minus(NONE, BF16), "negative", 0.03, because="made up"))]
    )
    assert "H7: (1) primary: reward, last quarter: no correction minus BF16 control" in text
    assert "expected negative, margin 0.03" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", DIAGNOSTIC_CATALOG)
def test_every_look_sees_finite_numbers_of_every_policy(name):
    run_specs = [RunSpec("a", "s", seed, {**SMOKE, "objective": "grpo", "seed": seed}) for seed in (0, 1)]
    recipe, _, states = start_runs(run_specs, Path("unused"))
    seen = build_diagnostics((name,))(recipe, states, states.params)
    assert seen
    for value in seen.values():
        assert value.shape[0] == len(run_specs)
        # Policies that earn nothing have no gradient to share out.
        assert np.isfinite(value).all() or name == "last minibatch"


@pytest.mark.slow
def test_build_diagnostics_accepts_constant_engines():
    spec = RunSpec("a", "s", 0, {**SMOKE, "objective": "grpo", "seed": 0, "engines": "fp16/fp16"})
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


@pytest.mark.slow
def test_last_minibatch_follows_the_updates_before_it():
    spec = RunSpec("a", "s", 0, {**SMOKE, "objective": "gspo", "minibatches": 4, "seed": 0})
    recipe, _, states = start_runs([spec], Path("unused"))
    state = jax.tree.map(lambda x: x[0], states)
    rows = recipe.group_size

    def params_with(rewards: np.ndarray) -> Any:
        context = DiagnosticContext(recipe, state)
        context.__dict__["sampled"] = replace(context.sampled, rewards=jnp.asarray(rewards, jnp.float32))
        _, params, before, batch = diagnostics._last_minibatch(context)
        assert batch.mask.shape[0] == rows
        assert np.any(batch.logp != before.logp)
        return params

    one = np.tile([0.0, 1.0], 2 * rows)
    earlier, later = one.copy(), one.copy()
    earlier[0], later[-1] = 1, 0
    first = params_with(one)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool(np.array_equal(a, b)), first, params_with(later)))
    assert not jax.tree.all(
        jax.tree.map(lambda a, b: bool(np.array_equal(a, b)), first, params_with(earlier))
    )


@pytest.mark.slow
def test_observed_runs_are_those_of_a_sweep(tmp_path):
    # Two batches at a time.
    wanted = run_specs(chain_arm(NONE), 0, smoke=True) + run_specs(chain_arm(TIS), 0, smoke=True)[:1]
    assert len(wanted) == SMOKE_RUNS_PER_BATCH + 1
    observed, plain = (Run("observed", tmp_path / name / "out", smoke=True) for name in ("one", "other"))
    rows = observe_runs(observed, wanted, ("both engines",))
    tables, alone = run_sweep(observed, wanted), run_sweep(plain, wanted)
    for name in ("runs", "steps", "vectors"):
        pd.testing.assert_frame_equal(tables[name], alone[name])
    assert sorted(rows["run"].unique()) == sorted(tables["runs"]["run"])
    assert rows["step"].tolist() == [10, 20] * len(wanted)
    assert np.isfinite(rows[["held_out_infer", "held_out_train"]].to_numpy()).all()
    pd.testing.assert_frame_equal(observe_runs(observed, wanted, ("both engines",)), rows)


@pytest.mark.slow
def test_an_error_in_one_batch_stops_the_others(tmp_path, monkeypatch):
    wanted = run_specs(chain_arm(NONE), 0, smoke=True) + run_specs(chain_arm(TIS), 0, smoke=True)[:1]
    run, made = Run("observed", tmp_path / "out", smoke=True), []

    def diagnose(recipe, state, base):
        made.append(len(state.step))
        raise RuntimeError("made up")

    monkeypatch.setattr(repeated_runs, "build_diagnostics", lambda *_, **__: diagnose)
    with pytest.raises(RuntimeError, match="made up"):
        observe_runs(run, wanted, ("both engines",))
    assert 1 <= len(made) <= AT_ONCE
    assert not list((tmp_path / "cache").rglob("diagnostics/*/*.parquet"))


@pytest.mark.slow
def test_forks_continue_the_run(tmp_path):
    run = Run("forked", tmp_path / "out", smoke=True)
    forks = run_forks(run, (FORK, EARLY_FORK), 0, chain_arm(NONE))
    plain = run_sweep(run, run_specs(chain_arm(NONE), 0, smoke=True))
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
            return state, {"rms_log_rho": 0.7 * np.asarray(recipe.sampling.noise.scale)[:, None] ** 1.5}

    config = run_config(BASE, {**next(iter(MATCHED.values())).changes, "warm_start": None})
    recipe = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), recipe_of(config))
    noise = FollowingNoise(cast(Any, Program()), targets, "fresh")
    steps = [noise.advance(recipe, cast(Any, None))[1]["rms_log_rho"][:, 0] for _ in range(60)]
    reached = np.stack(steps, axis=1)
    assert reached[:, [29]] == pytest.approx(targets[:, [29]], rel=0.01)
    assert reached[0, 59] == pytest.approx(1.2, rel=0.01)
    # A run that diverged has no further target: the last scale stays.
    assert reached[1, 30:] == pytest.approx(reached[1, 30])


@pytest.mark.slow
def test_matched_runs_are_as_noisy_as_those_they_follow(tmp_path):
    run = Run("matched", tmp_path / "out", smoke=True)
    name = new_arm(next(iter(LARGER_NOISES)))
    frames = run_matched(run, name, 0)
    targets = LARGER * read_targets(run, run_specs(new_arm(NONE), 0, smoke=True))
    reached = frames["steps"].pivot_table(index="run", columns="step", values="rms_log_rho").to_numpy()
    assert reached.shape == targets.shape
    assert np.abs(np.log(reached / targets)).mean() < 0.25
    assert set(frames["runs"]["arm"]) == {name}
    assert frames["steps"]["noise_scale"].between(0.01, 0.1).all()
    assert frames["diagnostics"]["step"].unique().tolist() == [10, 20]


def test_variants_measure_what_they_say():
    train, infer = np.log([[0.5, 0.25], [0.5, 1.0]]), np.log([[0.25, 0.25], [0.5, 0.5]])
    batch = TokenBatch(
        logp=jnp.float32(train),
        logp_train=jnp.float32(train),
        logp_infer=jnp.float32(infer),
        rewards=jnp.array([1.0, 0.0]),
        mask=jnp.array([[True, True], [True, False]]),
        group_size=2,
    )
    absolute, squared, divergence = np.asarray(acrl_variants.distances(batch))
    assert absolute.tolist() == [0.125, 0]
    assert squared.tolist() == [0.03125, 0]
    assert divergence == pytest.approx([(1 - np.log(2)) / 2, 0])
    # Y = 0.0625 over X = 0.125: half of gamma, rho = 2 where the engines differ.
    weights = acrl_variants.Distance(0, 0.125)(batch, jnp.array([[1.0, 1.0], [-1.0, -1.0]]))
    assert np.asarray(weights[0]) == pytest.approx([2 ** (acrl_variants.GAMMA / 2), 1])
    # The right answer has twice the mean discrepancy and loses 2, the wrong one nothing.
    advantages = np.asarray(acrl_variants.PenalizedAdvantage(1.0)(batch, jnp.ones(2, bool)))
    assert advantages[0] < 0 < advantages[1]


@pytest.mark.parametrize("regime", MEASURED)
def test_regime_has_a_measured_mismatch(regime):
    _, arm = MEASURED[regime]
    assert arm in ARMS
    # The tasks of *cancel* have equal engines: their mismatch is rounding of the order of float32.
    low, high = (0, 1e-5) if regime in ("template", "two spellings") else (0.005, 1)
    assert low <= initial_mismatch(regime) < high


def test_attributes_of_the_stored_runs_are_those_of_the_arms():
    runs = Results(committed_results("vexact_dynamics")).table("runs").drop_duplicates("arm").set_index("arm")
    for name, row in runs.iterrows():
        attributes = ARMS[str(name)].attributes(BASE)
        assert {key: row[key] for key in attributes} == attributes


def test_runs_record_processor_family_and_policy():
    runs = pd.DataFrame({"run": ["a", "b"]})
    stored = pd.DataFrame({"run": ["b", "a"], "warm_start": ["sha256:12", None]})
    described = with_provenance(runs, stored)
    assert described["policy_sha256"].tolist() == ["", "12"]
    assert set(described["processor_family"]) == {processor_family()}
