"""Rules and measures of the experiments about dynamics, on made-up runs; the arms, without running them."""

import hashlib
from types import SimpleNamespace
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from experiments.arms.chains import BF16, EXACT, NONE, TIS
from experiments.arms.settings import REPEATS, on_chains, three_runs, with_moe
from experiments.papers import acrl, vexact
from experiments.regimes import BASE
from experiments.studies import acrl_variants, diagnostics, stages
from experiments.studies.leaderboard import DENSE, EVERY, MOE
from experiments.studies.repeated_runs import load_policies
from experiments.studies.runs import (
    BLOCK,
    CHUNK,
    SMOKE,
    RunSpec,
    block_specs,
    find_changes,
    pool_bins,
    summarize_chunks,
    with_flips,
    with_provenance,
)  # fmt: skip
from simlab.core.manifest import processor_family
from simlab.core.paths import checkout_root, committed_results
from simlab.core.results import Results
from simlab.objectives import TokenBatch
from simlab.studies import Measured
from simlab.studies import estimands as m
from simlab.studies.arms import Arm
from simlab.studies.contrasts import CollapseRate, CollapsesSooner, LeavesBand, Share, mean_of, minus, slope
from simlab.studies.loading import load_experiments
from simlab.studies.records import COLLAPSE, COLLAPSE_TIME, Trial, arms_of, manipulation, primary
from simlab.studies.remedy_ranking import read_leaderboard
from simlab.studies.samples import Exact
from simlab.studies.verdicts import decide_family, initial_mismatch, measure_trials
from simlab.sweeps import run_config

STEPS, STARTS = 100, 16  # fewer starts reach no level of a family: sign flips of n have p-values from 2 / 2^n


def _results(rewards, rms=None, steps=STEPS):
    """One run per arm and start; `rewards` and `rms` map arms to curves, shifted by the start."""
    runs, rows = [], []
    for arm, curve in rewards.items():
        for start in range(STARTS):
            key = f"{arm} {start}"
            runs.append({"run": key, "arm": arm, "initial_policy": f"s{start}", "seed": 0, "steps": steps})
            values = np.broadcast_to(curve, steps) + 0.01 * (start % 4)
            spread = np.broadcast_to(1.0 if rms is None else rms[arm], steps)
            numbers = {"reward": values, "rms_log_rho": spread, "discrepancy": spread, "std_rho": spread}
            numbers |= {"max_rho": spread, "entropy": spread, "grad_norm": spread}
            rows.append(
                pd.DataFrame({"run": key, "step": np.arange(steps), "abs_seq_log_ratio": spread} | numbers)
            )
    runs = pd.DataFrame(runs).assign(status="finished", steps_completed=steps)
    return m.Tables({"runs": runs, "chunks": summarize_chunks(pd.concat(rows))})


def arms(*ids):
    """Return made-up arms."""
    return tuple(map(Arm, ids))


def _trial(claim, *criteria):
    return Trial("made_up", criteria, claim=claim)


def _decided(results, *trials):
    return decide_family(measure_trials(results, trials))


def test_contrasts_see_through_the_starts():
    fall = np.linspace(0.9, 0.1, STEPS)
    results = _results({"a": 0.9, "b": 0.6, "c": fall})
    better = primary(m.REWARD, minus(*arms("a", "b")), "positive", 0.05, because="made up")
    worse = primary(m.REWARD, minus(*arms("a", "b")), "negative", 0.05, because="made up")
    found = _decided(results, _trial("H7", better), _trial("L3", worse))
    assert [f.verdict for f in found] == ["reproduced", "contradicted"]
    # Starts differ by 0.01 each, arms do not: the pairs agree to the last bit of float32.
    assert found[0].primary.estimate == pytest.approx(0.3, abs=1e-6)
    assert found[0].primary.ci_high - found[0].primary.ci_low < 1e-5
    line = primary(
        m.REWARD,
        slope(dict(zip((1.0, 2.0), arms("a", "b"), strict=True)), "x"),
        "negative",
        0.05,
        because="made up",
    )
    assert _decided(results, _trial("H9", line))[0].primary.estimate == pytest.approx(-0.3, abs=1e-6)


def test_share_of_the_loss_is_a_ratio_of_means():
    results = _results({"remedy": 0.5, "none": 0.2, "control": 0.8})
    share = primary(m.REWARD, Share(*arms("remedy", "none", "control")), "positive", 0.2, because="made up")
    (found,) = _decided(results, _trial("L6", share))
    assert found.primary.estimate == pytest.approx(0.5, abs=1e-5)
    assert found.verdict == "reproduced"


def test_without_its_premise_nothing_is_said():
    results = _results({"a": 0.9, "b": 0.9})
    part = primary(m.REWARD, minus(*arms("a", "b")), "zero", 0.05, because="made up")
    premise = manipulation(m.PEAK_REWARD, minus(*arms("a", "b")), "negative", 0.05, because="made up")
    bare, given = _decided(results, _trial("H7", part), _trial("L3", part, premise))
    assert bare.verdict == "reproduced"
    assert given.verdict == "premise absent"
    # An arm that was not run: nothing is measured.
    absent = primary(m.REWARD, mean_of(*arms("d")), "zero", 1.0, because="made up")
    assert not measure_trials(results, [_trial("H7", absent)])


def test_collapse_is_against_the_control_of_the_same_policy():
    late = np.where(np.arange(STEPS) < 50, 0.8, 0.1)
    later = np.where(np.arange(STEPS) < 70, 0.8, 0.1)
    views = m.Views(_results({"late": late, "later": later, "poor": 0.5, "control": 0.8}))

    def sample(contrast, estimand=COLLAPSE):
        return contrast.measure(views, estimand)

    assert sample(CollapseRate(*arms("late", "control"))).estimate == 1
    assert sample(CollapseRate(*arms("poor", "control"))).estimate == 0
    assert sample(CollapsesSooner(*arms("late", "later", "control")), COLLAPSE_TIME).estimate == 0.5
    assert sample(CollapsesSooner(*arms("poor", "later", "control")), COLLAPSE_TIME).estimate == -0.5
    # Two runs that never collapse say nothing of their order.
    assert sample(CollapsesSooner(*arms("poor", "control", "control")), COLLAPSE_TIME).interval(0.05) == (
        -0.5,
        0.5,
    )
    assert sample(LeavesBand(*arms("late", "control"), 2.0, -1), m.REWARD).estimate == 1
    assert sample(LeavesBand(*arms("late", "control"), 2.0, 1), m.REWARD).estimate == 0


def test_families_of_processors_that_disagree_are_a_conflict():
    results = _results({"a": 0.9, "b": 0.6})
    runs, chunks = results.table("runs"), results.table("chunks")
    other = runs["initial_policy"].isin(["s2", "s3"])
    runs["processor_family"] = np.where(other, "Y", "X")
    moved = chunks["run"].isin(runs["run"][other & (runs["arm"] == "b")])
    chunks["reward"] = chunks["reward"].where(~moved, 2.0)
    better = primary(m.REWARD, minus(*arms("a", "b")), "positive", 0.05, because="made up")
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


def test_largest_growth_is_from_the_first_tenth():
    rms = np.where(np.arange(STEPS) < 20, 0.1, 0.3)
    views = m.Views(_results({"falls": 0.8}, {"falls": rms}))  # pyright: ignore
    assert m.largest_growth("rms_log_rho", "RMS")(views.arms["falls"]["s0", 0]) == pytest.approx(np.log(3))


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


def swept_arms():
    """Return the arms of all training experiments that a sweep can run, each id once."""
    designs = [each.design for each in load_experiments().values() if each.design is not None]
    found = {}
    for arm in (arm for design in designs for arm in design.arms.values()):
        assert found.setdefault(arm.id, arm) == arm
    return [arm for arm in found.values() if arm.is_swept]


def test_every_arm_is_a_run_and_no_two_are_the_same():
    seen = {}
    for arm in swept_arms():
        wanted = block_specs(arm, None, smoke=False)
        assert len({place.initial_policy for place in wanted}) == len(arm.initial_policies)
        config = run_config(BASE, wanted[0].changes)
        if arm.x_from is None:
            assert repr(config) not in seen, (arm, seen[repr(config)])
            seen[repr(config)] = arm
        else:
            assert arm.x_from.initial_policies == arm.initial_policies


def test_block_holds_every_seed_of_its_initial_policies():
    blocks = [block_specs(three_runs(TIS), block, smoke=False) for block in range(3)]
    policies = [dict.fromkeys(spec.initial_policy for spec in block) for block in blocks]
    assert [len(each) for each in policies] == [BLOCK] * 3
    assert not policies[0].keys() & policies[1].keys()
    for block, each in zip(blocks, policies, strict=True):
        expected = [(policy, seed) for policy in each for seed in REPEATS]
        assert [(spec.initial_policy, spec.seed) for spec in block] == expected
        assert [spec.changes["seed"] for spec in block] == [seed for _, seed in expected]


def test_trials_about_other_arms():
    trial = acrl.A3.trial("acrl_dynamics")
    assert set(arms_of([trial])) == {acrl.ACRL, acrl.TIS5}
    (moved,) = (trial for trial in acrl.OTHER_LEVELS["batch"] if trial.claim == "A3")
    assert set(arms_of([moved])) == {acrl.PER_BATCH, acrl.TIS5}
    assert f"{acrl.PER_BATCH} minus {acrl.TIS5}" in moved.text


def _with_engines(results):
    runs = results.tables["runs"]
    truncated = runs["arm"].isin([on_chains(arm).id for arm in (NONE, EXACT, TIS)])
    engines = np.where(truncated, "fp8-e4m3-truncated", "bf16")
    return m.Tables(results.tables | {"runs": runs.assign(infer_engine=engines)})


def test_leaderboard_compares_exact_engine_with_tis():
    none, bf16, exact, tis = (on_chains(arm).id for arm in (NONE, BF16, EXACT, TIS))
    rewards = {none: 0.2, bf16: 0.8, exact: 0.75, tis: 0.3, with_moe(TIS).id: 1.0}
    results = _with_engines(_results(rewards))
    (evidence,) = decide_family(DENSE.collect_evidence(results))
    assert evidence.primary.estimate == pytest.approx(0.75)
    assert evidence.verdict == "reproduced"
    recovered = read_leaderboard(results, vexact.V6.trial(DENSE.experiment)).recovered
    assert [row.arm for row in recovered] == [exact, tis]
    partial = _with_engines(_results({none: 0.2, tis: 0.5}))
    assert DENSE.collect_evidence(partial) == []


@pytest.mark.parametrize("comparison", [DENSE, MOE])
def test_leaderboard_follows_its_rule(comparison):
    parts = [(block, arm) for block, arms in comparison.schedule for arm in arms]
    assert len(parts) == len(set(parts))
    assert set(parts) == {(block, arm) for block in range(3) for arm in comparison.arms}
    primary = {comparison.place(arm) for arm in (NONE, BF16, TIS, EXACT)}
    assert {arm for _, arm in parts[: 3 * len(primary)]} == primary
    (steps,) = {arm.steps for arm in comparison.arms}
    late = [step for step in range(EVERY, steps + 1, EVERY) if step >= m.LATE * steps]
    assert f"at steps {late[0]} and {late[1]}" in comparison.rule
    assert len(late) == 2


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


def test_every_variant_is_implemented():
    own = {arm.own_objective for arm in acrl.ACRL_VARIANTS.design.arms.values()} - {""}
    assert set(acrl_variants.IMPLEMENTATIONS) == own


@pytest.mark.parametrize(
    ("experiment", "arm"),
    [
        ("vexact_dynamics", "chain: no correction"),
        ("acrl_dynamics", "chain: 2 and 1 bits"),
        ("vexact_dynamics", "chain: BF16 control"),
        ("moe_dynamics", "chain, MoE at 0.0004: no correction"),
        ("length_dynamics", "length: no schedule"),
        ("cancel_dynamics", "template: GRPO"),
        ("spelling_dynamics", "two_spellings: GRPO"),
    ],
)
def test_regime_has_a_measured_mismatch(experiment, arm):
    # The tasks of *cancel* have equal engines: their mismatch is rounding of the order of float32.
    low, high = (0, 1e-5) if arm.endswith("GRPO") else (0.005, 1)
    mismatch = initial_mismatch(m.Views(Results(committed_results(experiment))), arm)
    assert mismatch is not None
    assert low <= mismatch < high


def test_attributes_of_the_stored_runs_are_those_of_the_arms():
    runs = Results(committed_results("vexact_dynamics")).table("runs").drop_duplicates("arm").set_index("arm")
    for name, row in runs.iterrows():
        attributes = vexact.VEXACT_DYNAMICS.design.arms[str(name)].attributes(BASE)
        assert {key: row[key] for key in attributes} == attributes


def test_runs_record_processor_family_and_policy(tmp_path):
    file = checkout_root() / "experiments/warm_starts/add-tiny-llama-0.npz"
    trained = {**SMOKE, "warm_start": {"seed": 3, "steps": 2, "lr_warmup_steps": 1}}
    starts = [SMOKE, {"task": "add", "warm_start": str(file)}, trained]
    wanted = [RunSpec(NONE, "", 0, {**start, "objective": "grpo"}) for start in starts]
    load_policies([wanted[2]], tmp_path)
    described = with_provenance(pd.DataFrame({"run": ["a", "b", "c"]}), wanted, tmp_path)
    (written,) = tmp_path.glob("*.npz")
    hashes = ["", *(hashlib.sha256(each.read_bytes()).hexdigest() for each in (file, written))]
    assert described["policy_sha256"].tolist() == hashes
    assert set(described["processor_family"]) == {processor_family()}
    described = with_provenance(pd.DataFrame({"run": ["a", "b", "c"]}), wanted, tmp_path, ["A", "B", "A"])
    assert described["processor_family"].tolist() == ["A", "B", "A"]
