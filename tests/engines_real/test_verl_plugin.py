"""The verl plug-in inside real verl, on CPU: losses against simlab's own, learning rate, dump."""

import json
import os
import subprocess
import tomllib
from dataclasses import replace

import numpy as np
import pytest

from simlab.diagnosis import diagnose, read_log
from simlab.diagnosis.torch_file import load
from simlab.objectives import resolve
from simlab.objectives.corrections import Masked, Truncated, geometric_log_rho
from simlab.training.schedules import LengthTriggered, MismatchTriggered
from tests.engines_real.frameworks import ROOT, fresh_seed, interpreter
from tests.integrations.test_verl_triggers import factors
from tests.objectives.framework_comparison import (
    EPS,
    Case,
    assert_equal_to_round_off,
    batch_from,
    golden_from,
)
from tests.tolerances import assert_exact, assert_within_interval, normal_interval

pytestmark = pytest.mark.engines

GRPO = resolve("grpo")
BIAS = resolve("gspo_bias").distortion
DFPO = (
    "dfpo_none",
    "dfpo_min",
    "dfpo_orth",
    "dfpo_posorth",
    "dfpo_rebalance",
    "dfpo_min_no_stop",
    "dfpo_scale",
)
# clip_ratio_c of the side script.
NO_CAP = 1e10
# Variant of `verl_plugin_side.py` -> simlab's objective.
OBJECTIVE_OF = {
    "grpo": GRPO,
    **{
        f"grpo+acrl {level}": resolve("grpo+acrl", acrl_level=level)
        for level in ("sequence", "group", "batch")
    },
    "gspo+acrl": resolve("gspo+acrl"),
    "grpo+geometric_tis": replace(GRPO, correction=Truncated(geometric_log_rho, 2.0)),
    "grpo+geometric_icepop": replace(
        resolve("grpo", aggregation="token-mean"), correction=Masked(geometric_log_rho, (0.5, 5.0))
    ),
    "grpo_bias": replace(GRPO, distortion=BIAS),
    "dfpo_min+tis": resolve("dfpo_min+tis"),
    "luspo": resolve("luspo"),
    **{
        name: resolve(name, ratio_cap=NO_CAP, divergence_low=0.05, divergence_high=0.05)
        for name in ("dppo_tv", "dppo_kl")
    },
    **{name: resolve(name, ratio_cap=NO_CAP) for name in ("ipo", "vespo")},
    **{name: resolve(name) for name in ("kpop", "drpo", "m2po", "gspo+vaco")},
    **{f"grpo+{name}": resolve(f"grpo+{name}") for name in ("kpop", "vaco")},
    "grpo_rollout_kl": resolve("grpo+rollout_kl"),
    "ipo_rollout_kl": resolve("ipo+rollout_kl", ratio_cap=NO_CAP),
    **{f"grpo+{name}": resolve(f"grpo+{name}", baseline="all") for name in ("kpop_mask", "m2_mask")},
    "grpo+prob_diff": resolve("grpo+prob_diff", baseline="all", prob_diff_bounds=(-0.1, 0.05)),
    "grpo+prob_diff+geo_mask": resolve(
        "grpo+geo_mask+prob_diff",
        baseline="all",
        prob_diff_bounds=(-0.1, 0.05),
        rejection_bounds=(0.9, 1.1),
    ),
    "grpo+opsm": resolve("grpo+opsm", opsm_delta=0.05),
    "gspo+opsm": resolve("gspo+opsm", opsm_delta=0.05),
    "reinforce": resolve("reinforce"),
    **{name: resolve(name) for name in ("gspo", "gspo_bias", "grpo_fix", "grpo_fix_weight", *DFPO)},
}
BATCHES = ("moderate", "wide", "empty")


def run_in_verl(script, folder, *arguments):
    """Run a script of this folder in verl's environment, with the entry point as if it were installed."""
    metadata = folder / "simlab-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: simlab\nVersion: 0\n")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    points = "".join(
        f"{name} = {module}\n" for name, module in project["entry-points"]["verl.plugins"].items()
    )
    (metadata / "entry_points.txt").write_text(f"[verl.plugins]\n{points}")
    # A threshold that the random batches keep away from.
    settings = {"SIMLAB_VERL_OPSM_DELTA": "0.05"}
    environment = os.environ | settings | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    command = [interpreter("verl"), str(ROOT / "tests" / "engines_real" / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What the side script wrote, and its folder."""
    folder, seed = tmp_path_factory.mktemp("plugin"), fresh_seed()
    print(f"SIMLAB_GOLDEN_SEED={seed}")
    run_in_verl("verl_plugin_side.py", folder, str(seed), str(folder))
    with np.load(folder / "answers.npz") as arrays:
        return dict(arrays), folder


def test_every_variant_is_compared(answers):
    assert set(answers[0]["names"]) == set(OBJECTIVE_OF)


@pytest.mark.parametrize("name", OBJECTIVE_OF)
def test_value_and_coefficients(answers, name):
    arrays = answers[0]
    cases = {}
    for label in BATCHES:
        golden = golden_from(arrays, label, name)
        absolute = of_recovered_logp(arrays, label) if "rollout_kl" in name else 0.0
        cases[label] = Case(batch_from(arrays, label), golden, floor(name, arrays, label), absolute)
    assert_equal_to_round_off(OBJECTIVE_OF[name], cases)


def of_recovered_logp(arrays, label):
    """Error of the rollout KL's coefficient, 2e-3 (log p - log mu) / N: log mu is log q - log(rho)."""
    mask = arrays[f"{label}/mask"] != 0
    largest = max(np.abs(arrays[f"{label}/{name}"][mask]).max() for name in ("logp", "logp_train"))
    return 2 * 2e-3 / mask.sum() * 4 * EPS * (largest + 20)


def floor(name, arrays, label):
    """Absolute error of the weights where they are small differences or powers of float32 numbers."""
    mask = arrays[f"{label}/mask"] != 0
    tokens = int(mask.sum(1).max())
    if "acrl" in name:
        # alpha is 1 - Y / X, each a mean over n numbers; it multiplies a log rho of at most 20, and C is 3.
        log_rho = np.abs(arrays[f"{label}/logp_train"] - arrays[f"{label}/logp_infer"])[mask].max()
        return 3 * min(log_rho, 20) * 0.65 * 4 * (tokens + len(mask)) * EPS
    if name.startswith("dfpo"):
        # A projection subtracts weights of the size of the largest, over a group of four.
        log_r = (arrays[f"{label}/logp"] - arrays[f"{label}/logp_train"]) * mask
        largest = np.exp(min(10.0, np.abs(log_r.sum(1) / np.maximum(mask.sum(1), 1)).max()))
        return 2 * largest * (tokens + 16) * EPS
    return 0.0


def test_noise_has_mean_one_and_its_standard_deviation(answers):
    noise = answers[0]["noise"]
    assert_within_interval(noise.mean(), *normal_interval(noise.size, 1, 0.2, 1e-9), alpha=1e-9)
    # The standard deviation of a standard deviation is about s / sqrt(2 n).
    assert abs(noise.std() - 0.2) < 6 * 0.2 / np.sqrt(2 * noise.size)


def test_the_rates_are_those_of_the_lab(answers):
    arrays = answers[0]
    length = LengthTriggered(early=4, delay=0.4)
    mismatch = MismatchTriggered(early=4, cooldown=3)
    expected = [factors(length, arrays["lengths"]), factors(mismatch, arrays["log_weights"])]
    assert min(expected[0]) < 1
    assert min(expected[1]) < 1
    # simlab's smoothing is float32.
    np.testing.assert_allclose(arrays["rates"], expected, rtol=1e-6)


def test_a_dump_of_verl_is_read_by_diagnose(answers):
    arrays, folder = answers
    read = read_log(folder / "dump")
    assert not read.problems
    log, mask = read.log, arrays["moderate/mask"] != 0
    assert_exact(log.logp_train, arrays["moderate/logp_train"][mask])
    assert_exact(log.logp_infer, arrays["moderate/logp_infer"][mask])
    assert (log.step == 5).all()
    assert log.group is not None
    assert len(np.unique(log.group)) == 4
    assert log.rewards is not None
    np.testing.assert_allclose(log.rewards, arrays["moderate/rewards"], rtol=1e-6)
    # The token at position t of the response was computed at position P - 1 + t, here P = 3.
    assert log.experts_infer is not None
    assert log.experts_infer.shape == (mask.sum(), 4)
    assert log.experts_infer[0, 0] == 2 * 4
    assert log.top_k == 2


def test_a_file_of_torch_is_read_as_torch_wrote_it(answers):
    arrays, folder = answers
    content = load(folder / "3_0.pt")
    data = content["rollout_data"]
    assert_exact(np.stack(data["log_probs"]), arrays["moderate/logp_train"])
    assert_exact(data["other"][0], np.arange(8, dtype=np.float32).reshape(2, 4).T[1:])


def test_the_optimal_token_baseline_can_have_its_full_tail(answers):
    assert (answers[1] / "otb.txt").read_text() == "{'handle_zero_tail': False}"


def test_groups_that_are_not_together_are_refused(answers):
    assert "do not sum to zero" in (answers[1] / "misfit.txt").read_text()


@pytest.fixture(scope="module")
def patched(tmp_path_factory):
    """What verl's own trainers, worker and engine did with the patches in, and the folder of its dumps."""
    folder = tmp_path_factory.mktemp("patches")
    run_in_verl("verl_patches_side.py", folder, str(folder))
    return json.loads((folder / "found.json").read_text()), folder


def test_verls_own_engine_and_trainers_are_patched(patched):
    found = patched[0]
    # Warm-up over two steps, then verl's constant rate; nothing has surged.
    assert found["rates"] == [0.5, 1.0, 1.0]
    assert all(name.startswith("wrap_update_actor.") for name in found["patched"])
    first, second = found["rows"]
    assert (first["logp_infer"], first["ids"], first["group"]) == ([-1.5, -2.0], [5, 6], "a")
    assert (first["reward"], first["version"], first["step"]) == (1.0, 3, 6)
    assert (second["logp_train"], second["version"]) == ([-3.0], 4)


def test_dump_has_log_probs_of_each_minibatch(patched):
    """Four minibatches, shuffled, in micro-batches of verl's choice, two epochs: the first pass counts."""
    found, folder = patched
    (file,) = (folder / "agreeing").iterdir()
    rows = _rows(file)
    assert sorted(row["update"] for row in rows) == sorted([0, 1, 2, 3] * 16)
    assert len({row["micro_batch"] for row in rows}) > 4
    for row, ids in zip(rows, found["sequences"], strict=True):
        prompt = len(ids) - len(row["ids"])
        assert row["ids"] == ids[prompt:]
        # The token before computed a token's probability.
        assert row["experts_infer"][::4] == list(range(prompt - 1, len(ids) - 1))
        table = np.array(found["tables"][row["update"]])
        logps = table - np.log(np.exp(table).sum(1, keepdims=True))
        # A float32 softmax over 11 logits, twice.
        np.testing.assert_allclose(row["logp"], logps[ids[prompt - 1 : -1], ids[prompt:]], rtol=0, atol=4e-6)
        if row["update"] == 0:
            assert row["logp"] == row["logp_train"]
    assert max(abs(a - b) for row in rows for a, b in zip(row["logp"], row["logp_train"], strict=True)) > 0.01
    assert rows[0]["mask"][-1] == 0


def _rows(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_updates_count_from_theta_old(patched):
    # Two epochs of four minibatches each came before the second call.
    rows = _rows(patched[1] / "dump" / "step_000007_1.jsonl")
    assert {row["update"] for row in rows} == {8, 9, 10, 11}


def test_dump_has_training_log_probs_in_bypass_mode(patched):
    whole = _rows(patched[1] / "agreeing" / "step_000007.jsonl")
    bypassed = _rows(patched[1] / "dump" / "step_000007.jsonl")
    assert len(bypassed) == len(whole) / 4
    assert all(row["logp_train"] == row["logp"] and row["update"] == 0 for row in bypassed)


def test_a_dump_of_verl_tells_micro_batch_effects_from_none(patched):
    agreeing, wobbling = (
        diagnose(patched[1] / name).answers["micro_batches"] for name in ("agreeing", "wobbling")
    )
    assert agreeing.verdict.startswith("no"), agreeing
    assert wobbling.verdict.startswith("yes"), wobbling
