"""The plan of an experiment: arms against the baseline, criteria with power, all before any compute."""

import json
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from typer.testing import CliRunner

from simlab.cli import app
from simlab.studies import estimands as m
from simlab.studies.arms import Arm
from simlab.studies.contrasts import minus
from simlab.studies.loading import load_experiment
from simlab.studies.power import criterion_power, power_of_mean, power_of_share
from simlab.studies.preview import format_preview, preview
from simlab.studies.records import primary
from simlab.studies.samples import RatioOfMeans
from simlab.studies.verdicts import p_supported
from tests.tolerances import assert_within_interval, binomial_interval

runner = CliRunner()


@pytest.fixture(scope="module")
def plan():
    return preview(load_experiment("lr_dynamics"))


def test_preview_lists_the_resolved_differences_of_each_arm(plan):
    arms = {arm["arm"]: arm for arm in plan["arms"]}
    baseline = plan["design"]["baseline"]
    assert arms[baseline]["differences"] == {}
    assert arms["chain: learning rate / 10"]["differences"] == {"optimizer.learning_rate": [7e-4, 7e-5]}
    assert arms["chain: token TIS"]["differences"] == {
        "objective": ["grpo", "grpo+tis"],
        "objective.correction_clip": [None, 2.0],
    }
    # What a config leaves out has a value as well.
    control, projection = arms["chain: BF16 control"]["differences"], "engines.infer.projection"
    assert control[f"{projection}.activations.format.mantissa_bits"] == [2, 7]
    assert control[f"{projection}.weights.format"] == ["e4m3fn", "bf16"]
    assert control[f"{projection}.activations.scaling"] == ["fp8-per-token", "none"]
    assert control[f"{projection}.weights.rounding"] == ["toward_zero", "nearest_even"]
    text = format_preview(plan)
    both = "engines.infer.{projection.activations, projection.weights}"
    assert f"  {both}.rounding: toward_zero -> nearest_even\n" in text
    assert "  schedule.min_lr_ratio: none -> 0.1\n" in text
    assert arms["chain: BF16 control"]["infer_engine"] == "bf16"
    assert arms[baseline]["noise_kind"] == "truncation"
    assert arms[baseline]["initial_policies"] == plan["design"]["initial_policies"] or len(
        arms[baseline]["initial_policies"]
    ) == len(plan["design"]["initial_policies"])


def test_preview_states_each_criterion_with_its_power(plan):
    claims = {claim["claim"]: claim for claim in plan["claims"]}
    first, second, *_ = claims["L6"]["criteria"]
    assert (first["role"], first["direction"], first["margin"]) == ("primary", "positive", 0.2)
    assert first["alternative"] == pytest.approx(0.4)
    assert first["unit"] == "share of the loss recovered"
    assert first["because"]
    assert 0 <= first["power"] < second["power"] <= 1  # the family of primaries is corrected
    text = format_preview(plan)
    assert "claim L6 (lr Fig. 11, 12)" in text
    assert "underpowered" in text


def test_preview_without_runs_states_the_spread_that_suffices(tmp_path):
    plan = preview(load_experiment("lr_dynamics"), tmp_path)
    first = next(claim for claim in plan["claims"] if claim["claim"] == "L6")["criteria"][0]
    assert first["power"] is None
    assert first["num_policies"] == 24
    reached = power_of_mean(first["margin"], first["largest_std"], 24, first["alpha"], absent=False)
    assert reached == pytest.approx(0.8, abs=1e-6)
    assert f"needs a std of at most {first['largest_std']:.3g} (24 initial policies" in format_preview(plan)


def test_preview_of_identities_has_criteria_and_no_design():
    plan = preview(load_experiment("theory"))
    assert plan["design"] is None
    assert plan["arms"] == []
    (bound, *_) = next(claim for claim in plan["claims"] if claim["claim"] == "L9")["criteria"]
    assert bound["estimand"] == "occupancy drift is at most 2 t Delta"
    assert bound["because"]


def test_run_explain_prints_json_and_computes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = runner.invoke(app, ["run", "theory", "--explain", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["experiment"] == "theory"
    assert list(tmp_path.iterdir()) == []


def _views(std, policies=8):
    values = [std * (-1) ** policy for policy in range(policies)]
    keys = [(arm, policy) for arm in ("a", "b") for policy in range(policies)]
    runs = [
        {"run": f"{a}{p}", "arm": a, "initial_policy": f"p{p}", "seed": 0, "steps": 10, "status": "finished"}
        for a, p in keys
    ]
    chunks = [{"run": f"{a}{p}", "step": 0, "reward": values[p] if a == "a" else 0.0} for a, p in keys]
    return m.Views(m.Tables({"runs": pd.DataFrame(runs), "chunks": pd.DataFrame(chunks)}))


def test_power_matches_the_published_example():
    criterion = primary(m.REWARD, minus(Arm("a"), Arm("b")), "positive", 0.11, because="made up")
    views = _views(0.25 * (7 / 8) ** 0.5)
    alone, family = (criterion_power(views, criterion, 24, size) for size in (1, 14))
    assert alone is not None
    assert family is not None
    assert round(family.power, 2) == 0.17
    assert alone.power > 0.5
    assert family.std == pytest.approx(0.25)
    assert family.is_underpowered


def test_power_agrees_with_simulation():
    rng, std, policies, margin = np.random.default_rng(0), 0.25, 16, 0.11
    values = rng.normal(2 * margin, std, (4000, policies)) - margin
    rejected = stats.ttest_1samp(values, 0, axis=1).pvalue <= 0.05
    supported = (rejected & (values.mean(1) > 0)).sum()
    expected = power_of_mean(margin, std, policies, 0.05, absent=False)
    assert_within_interval(supported, *binomial_interval(4000, expected, 1e-4), alpha=1e-4)


@pytest.mark.parametrize("direction", ["positive", "negative", "zero"])
def test_power_of_a_share_is_that_of_the_decision(direction):
    """Where a remedy's gain hangs on the loss, the std of the contrasts at the estimate says too little."""
    rng, studies, policies, alpha, margin = np.random.default_rng(1), 400, 16, 0.02, 0.3
    criterion = primary(m.REWARD, minus(Arm("a"), Arm("b")), direction, margin, because="made up")
    loss = rng.normal(0.6, 0.5, 24)
    sample = RatioOfMeans(-0.4 * loss + rng.normal(0, 0.2, 24), loss)
    truth = {"positive": 0.6, "negative": -0.6, "zero": 0.0}[direction]
    chosen = rng.integers(24, size=(studies, policies))
    gains = sample.numerator + (truth - sample.estimate) * loss
    drawn = [RatioOfMeans(gains[each], loss[each]) for each in chosen]
    supported = sum(p_supported(each, criterion) <= alpha for each in drawn)
    expected = power_of_share(sample, direction, margin, policies, alpha)
    assert_within_interval(supported, *binomial_interval(studies, expected, 1e-4), alpha=1e-4)
    if direction == "positive":
        std = sample.contrasts(sample.estimate).std(ddof=1) / loss.mean()
        assert power_of_mean(margin, std, policies, alpha, absent=False) > expected + 0.1


@pytest.mark.parametrize("direction", ["positive", "zero"])
def test_power_rises_with_policies_and_falls_with_the_family(direction):
    criterion = primary(m.REWARD, minus(Arm("a"), Arm("b")), direction, 0.2, because="made up")
    views = _views(0.2)
    rising = [criterion_power(views, criterion, policies, 1) for policies in (8, 16, 32)]
    assert all(one and other and one.power < other.power for one, other in pairwise(rising))
    alone, family = (criterion_power(views, criterion, 16, size) for size in (1, 10))
    assert alone is not None
    assert family is not None
    assert family.power < alone.power


def test_preview_describes_noise_of_weights_alone_and_of_logits():
    arms = {arm["arm"]: arm for arm in preview(load_experiment("noise_dynamics"))["arms"]}
    kinds = {name: (arm["noise_kind"], arm.get("noise_level")) for name, arm in arms.items()}
    assert kinds["chain: weights in one bit, nearest"] == ("round to nearest", 1)
    assert kinds["chain: weights in one bit, stochastic"] == ("stochastic rounding", 1)
    assert kinds["chain: recent noise 1.0"] == ("recent noise", 1)
