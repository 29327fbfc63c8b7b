"""Every override of a launch script composes under verl's own Hydra config, and its records take them."""

import json
import subprocess

import pytest

from simlab.integrations.export import nearest_config, verl_run
from simlab.integrations.export.verl_run import overrides_of
from simlab.sweeps.config import run_config
from tests.engines_real.frameworks import ROOT, interpreter

pytestmark = pytest.mark.engines

BASE = {"engines": "bf16/fp8-e4m3", "task": "add", "model": "tiny-moe", "objective": "grpo"}
REPLAY = {"name": "bf16-fp32router/bf16-fp8kv", "replay": "R3"}
TRIGGERED = {"name": "length-triggered", "rise": 2.5}
RUNS = {
    "plain": ("megatron", {}),
    "plain_fsdp": ("fsdp", {"engines": "f32/vllm-bf16", "schedule": TRIGGERED}),
    "replay": ("megatron", {"engines": REPLAY, "kl_loss_coef": 0.01, "entropy_coeff": 0.001}),
    "acrl": ("megatron", {"objective": {"name": "grpo+acrl", "acrl_reference": 0.01}}),
    "masks": ("megatron", {"objective": "gspo+seq_mis+geo_mask+k3_mask", "sampling": {"top_p": 0.9}}),
    "dfpo": ("fsdp", {"objective": "dfpo_rebalance", "engines": "bf16/bf16-ordered"}),
    "cosine": (
        "megatron",
        {"schedule": {"name": "cosine", "steps": 200, "lr_warmup_steps": 5}, "objective": "dapo"},
    ),
    "cosine_fsdp": (
        "fsdp",
        {"schedule": {"name": "cosine", "steps": 200, "lr_warmup_steps": 5}, "steps": 200},
    ),
    "ordered": ("megatron", {"engines": "bf16-fp32router/bf16-ordered", "schedule": {"name": "linear"}}),
    "dfpo_megatron": ("megatron", {"objective": {"name": "dfpo_scale", "transform_scale": 0.25}}),
    "sapo": ("megatron", {"objective": "sapo", "old_log_probs": "train"}),
    "opsm": ("fsdp", {"objective": {"name": "gspo+tis+opsm", "opsm_delta": 0.01}}),
    "reinforce": ("megatron", {"objective": "reinforce"}),
    "bypass": ("megatron", {"objective": "rloo", "old_log_probs": "rollout"}),
}


@pytest.fixture(scope="module")
def composed(tmp_path_factory):
    """What verl made of each run."""
    folder = tmp_path_factory.mktemp("compose")
    runs = {name: verl_run(run_config(BASE, changes), backend) for name, (backend, changes) in RUNS.items()}
    lists = {name: overrides_of(run, name, run.environment) for name, run in runs.items()}
    (folder / "runs.json").write_text(json.dumps(lists))
    side = ROOT / "tests" / "engines_real" / "verl_compose_side.py"
    command = [interpreter("verl"), str(side), str(folder / "runs.json"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    return folder, runs


@pytest.mark.parametrize("name", RUNS)
def test_each_override_arrives(composed, name):
    folder, runs = composed
    found = json.loads((folder / f"{name}.json").read_text())
    for key, value in runs[name].overrides.items():
        if key != "model_engine" and not str(value).startswith("${"):
            assert found[key.lstrip("+")] == value, key
    for key, text in runs[name].environment.items():
        assert found[f"ray_kwargs.ray_init.runtime_env.env_vars.{key}"] == text


@pytest.mark.parametrize("name", RUNS)
def test_the_composed_yaml_comes_back_as_the_same_run(composed, name):
    folder, runs = composed
    found = nearest_config((folder / f"{name}.yaml").read_text())
    again = verl_run(run_config(found.config), RUNS[name][0])
    assert again.overrides == runs[name].overrides
    assert again.environment == runs[name].environment
