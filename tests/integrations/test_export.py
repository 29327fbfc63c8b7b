"""Launch scripts, refusals by name, and the way back; test_verl_export composes the overrides in verl."""

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simlab.cli import app
from simlab.integrations.export import nearest_config, slurm_script, to_toml, verl_run, verl_script
from simlab.integrations.export.source import read_run
from simlab.integrations.export.verl_run import overrides_of
from simlab.objectives import OBJECTIVES
from simlab.sweeps.config import run_config
from tests.sweeps.small import write_finished_sweep

BASE = {"engines": "bf16/fp8-e4m3", "task": "add", "model": "tiny-moe", "objective": "grpo"}
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "to_verl.toml"
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def _run(backend="megatron", **changes):
    return verl_run(run_config(BASE, changes), backend)


def test_the_setting_of_hacking_is_what_the_defaults_give():
    overrides = _run().overrides
    assert overrides["data.train_batch_size"] == 128
    assert overrides[f"{ROLLOUT}.n"] == 16
    assert overrides[f"{ACTOR}.ppo_mini_batch_size"] == 32
    assert overrides["data.max_response_length"] == 8192
    assert overrides[f"{ROLLOUT}.quantization"] == "fp8"
    assert overrides[f"{ACTOR}.optim.lr"] == 1e-6


def test_rates_keep_their_ratio():
    assert _run(**{"optimizer.learning_rate": 2.5e-5}).overrides[f"{ACTOR}.optim.lr"] == 1e-7


@pytest.mark.parametrize(
    "name",
    [
        *sorted(OBJECTIVES),
        "grpo+opsm",
        "sapo+opsm",
        "grpo+tis",
        "gspo+seq_mis+geo_mask",
        "grpo+rollout_kl",
        "ipo+rollout_kl+trm",
        "gpg+rollout_kl",
        "ipo+score_centering",
        "sapo+kpop",
        "gspo+vaco",
        "sapo+vaco",
        "grpo+kpop_mask+m2_mask+prob_diff",
        "ipo+tis",
    ],
)
def test_every_objective_is_mapped_or_refused_by_name(name):
    changes = {"objective": name} | ({"critic": {}} if name == "ppo" else {})
    rejected = {
        "ppo": "critic",
        "sapo+opsm": "opsm",
        "gpg+rollout_kl": "modifier 'rollout_kl' on loss mode 'gpg'",
        "ipo+score_centering": "score_centering",
        "sapo+vaco": "modifier 'vaco' on loss mode 'sapo'",
        "ipo+tis": "anchor 'rollout' with a correction",
    }
    if name in rejected:
        with pytest.raises(ValueError, match=f"cannot be exported to verl: .*{rejected[name]}"):
            _run(**changes)
    else:
        run = _run(**changes)
        mode = run.overrides[f"{ACTOR}.policy_loss.loss_mode"]
        needed = mode.startswith("simlab_") or name in (
            "reinforce",
            "sapo+kpop",
            "grpo+kpop_mask+m2_mask+prob_diff",
        )
        assert any("plug-in" in note for note in run.notes) == needed


def test_modifiers_of_the_plug_in_travel_with_their_numbers():
    masks = {"name": "grpo+kpop_mask+prob_diff+trm", "prob_diff_bounds": [-0.1, 0.3], "kpop_bound": 2}
    run = _run(objective=masks).overrides
    assert run["algorithm.rollout_correction.rollout_rs"] == "kpop_mask,prob_diff,seq_max_k2"
    assert run["algorithm.rollout_correction.rollout_rs_threshold"] == "2,-0.1_0.3,0.05"
    run = _run(objective={"name": "ipo+rollout_kl", "rollout_kl_coefficient": 0.01})
    assert run.overrides[f"{ACTOR}.policy_loss.loss_mode"] == "simlab_ipo_rollout_kl"
    assert run.environment["SIMLAB_VERL_ROLLOUT_KL_COEFFICIENT"] == "0.01"
    run = _run(objective={"name": "gspo+vaco", "vaco_bound": 0.5, "correction_clip": 3})
    assert run.environment == {"SIMLAB_VERL_VACO_BOUND": "0.5", "SIMLAB_VERL_VACO_CLIP": "3"}
    run = _run(objective={"name": "gpg", "advantage": "otb_full_tail"})
    assert run.environment == {"SIMLAB_VERL_OTB_ZERO_TAIL": "0"}


@pytest.mark.parametrize("name", ["dppo_tv", "dppo_kl", "ipo", "kpop", "drpo", "vespo"])
def test_anchored_losses_read_token_weights(name):
    around = _run(objective=name).overrides
    assert around["algorithm.rollout_correction.rollout_is"] == "token"
    assert around["algorithm.rollout_correction.rollout_is_threshold"] > 4.9e8
    assert around[f"{ACTOR}.policy_loss.loss_mode"] == f"simlab_{name}"
    old = _run(objective={"name": name, "anchor": "old"}).overrides
    assert "algorithm.rollout_correction.rollout_is" not in old
    assert old[f"{ACTOR}.policy_loss.loss_mode"] == (name if "dppo" in name else f"simlab_{name}")
    tighter = _run(objective={"name": "ipo", "divergence_bound": 0.1})
    assert tighter.environment["SIMLAB_VERL_DIVERGENCE_BOUND"] == "0.1"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"engines": "f32/fp8-s2-truncated-all"}, "infer 'fp8-s2-truncated-all'"),
        ({"engines": "fp8-e4m3-exact/fp8-e4m3-exact"}, "train 'fp8-e4m3-exact'"),
        ({"staleness": 2}, "staleness 2"),
        ({"sampling.min_length": 3}, "sampling.min_length 3"),
        ({"schedule": {"name": "halving", "period": 10}}, "schedule 'halving'"),
        ({"schedule": "length-triggered"}, "schedule 'length-triggered' under megatron"),
        ({"optimizer.eps": 1e-5}, "optimizer.eps"),
        ({"objective": "sapo+acrl"}, "modifier 'acrl' on loss mode 'sapo'"),
        ({"staleness": 2, "optimizer.eps": 1e-5}, "optimizer.eps 1e-05; staleness 2"),
    ],
)
def test_what_cannot_be_mapped_is_refused_by_name(changes, named):
    with pytest.raises(ValueError, match=f"cannot be exported to verl: .*{named}"):
        _run(**changes)


def test_reacting_schedules_travel_as_settings_of_the_plug_in():
    schedule = {"name": "mismatch-triggered", "rise": 3.0, "early": 7}
    with pytest.raises(ValueError, match="schedule 'mismatch-triggered' without token weights"):
        _run("fsdp", schedule=schedule)
    run = _run("fsdp", schedule=schedule, objective="grpo+tis")
    assert run.environment["SIMLAB_VERL_SCHEDULE"] == "mismatch-triggered"
    assert run.environment["SIMLAB_VERL_RISE"] == "3"
    assert run.environment["SIMLAB_VERL_MISMATCH_EARLY"] == "7"


def test_dfpo_keeps_its_groups_together():
    overrides = _run(objective="dfpo_min").overrides
    assert overrides[f"{ACTOR}.use_dynamic_bsz"] is False
    assert overrides["trainer.balance_batch"] is False
    assert overrides[f"{ACTOR}.ppo_micro_batch_size_per_gpu"] == "${actor_rollout_ref.rollout.n}"


def test_the_script_is_sound_bash(tmp_path):
    run = _run(objective="grpo+acrl")
    script = verl_script(run, "a run's name", dump="/data/it's here")
    path = tmp_path / "run.sh"
    path.write_text(script)
    assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
    words = shlex.split(script.replace("\\\n", " "), comments=True)
    expected = overrides_of(run, "a run's name", run.environment | {"SIMLAB_VERL_DUMP": "/data/it's here"})
    assert set(expected) <= set(words)
    # Ray takes text only.
    assert "+ray_kwargs.ray_init.runtime_env.env_vars.SIMLAB_VERL_ACRL_CLIP='3'" in words


YAML = """
actor_rollout_ref:
  actor:
    policy_loss: {loss_mode: gspo}
    clip_ratio_low: 3e-4
    clip_ratio_high: 0.0004
    loss_agg_mode: seq-mean-token-mean
    ppo_mini_batch_size: 32
    entropy_coeff: 0.001
    calculate_sum_pi_squared: true
    strategy: megatron
    optim: {lr: 5e-7}
    megatron:
      router_replay: {mode: R3}
  rollout:
    n: 16
    temperature: ${oc.env:T}
    top_p: 0.9
    quantization: fp8
algorithm:
  adv_estimator: grpo
  rollout_correction:
    rollout_is: token
    rollout_is_threshold: 5.0
    rollout_rs: seq_mean_k1
    rollout_rs_threshold: 0.999_1.001
data:
  train_batch_size: 128
"""


def test_a_yaml_of_verl_gives_the_nearest_run_and_what_differs():
    found = nearest_config(YAML)
    text = to_toml(found, "mine")
    base = tomllib.loads(text)["base"]
    config = run_config(base)
    table = config.as_dict()
    assert table["objective"]["name"] == "gspo+tis+geo_mask"
    assert table["engines"] == {"name": "bf16/fp8-e4m3", "replay": "R3"}
    assert (table["prompts_per_step"], table["group_size"], table["minibatches"]) == (8, 16, 4)
    assert table["sampling"]["top_p"] == 0.9
    assert table["sampling"]["processed"]
    assert table["optimizer"]["learning_rate"] == 1.25e-4
    assert any("calculate_sum_pi_squared" in difference for difference in found.differences)
    assert all(f"#   {difference}" in text for difference in found.differences)


@pytest.mark.parametrize(
    "objective",
    [
        "grpo+tis",
        "gspo+opsm",
        "reinforce",
        "dr_grpo",
        "dapo+seq_mis",
        "dfpo_orth",
        "sapo",
        "gpg",
        "dro",
        "kl_cov",
        "clip_cov",
    ],
)
def test_there_and_back_is_the_same_objective(objective):
    yaml = pytest.importorskip("yaml")
    config = run_config(BASE, {"objective": objective})
    nested: dict = {}
    for key, value in verl_run(config).overrides.items():
        *path, last = key.lstrip("+").split(".")
        inner = nested
        for name in path:
            inner = inner.setdefault(name, {})
        inner[last] = value
    found = run_config(nearest_config(yaml.safe_dump(nested)).config)
    again = verl_run(found)
    for key, value in verl_run(config).overrides.items():
        if not key.startswith(("trainer.", "data.seed")):
            assert again.overrides[key] == value, key


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("- a\n- b", "not a mapping"),
        ("a: 1\nb: [", "invalid YAML in line 2, column 5: expected the node content"),
        ("a: &x [1]\nb: *x", "aliases"),
        (
            "a: !!python/object/apply:os.system ['true']",
            "invalid YAML in line 1, column 4: could not determine a constructor",
        ),
    ],
)
def test_what_is_no_verl_config_gets_one_clear_error(text, reason):
    with pytest.raises(ValueError, match=reason):
        nearest_config(text)


def test_nearest_config_rejects_an_unknown_loss_mode():
    with pytest.raises(ValueError, match="unknown loss_mode 'gspoo'; did you mean 'gspo'"):
        nearest_config("actor_rollout_ref: {actor: {policy_loss: {loss_mode: gspoo}}}")


@pytest.mark.parametrize(("text", "warns"), [("n: 1", True), ("dtype: bfloat16", True), ("n: 2", False)])
def test_nearest_config_warns_of_single_responses(text, warns):
    found = nearest_config(f"actor_rollout_ref: {{rollout: {{{text}}}}}")
    assert any("rollout.n is 1 or absent" in difference for difference in found.differences) == warns


def test_slurm_goes_on_where_the_last_job_stopped(tmp_path):
    place = {"partition": "long", "account": "lab", "setup": ". venv"}
    script = slurm_script(EXAMPLE, "a sweep", hours=1.5, parts=3, gpus=1, **place)
    assert script.index("\n. venv\n") < script.index("simlab sweep")
    options = ("--array=1-3%1", "--time=01:30:00", "--gpus=1", "--partition=long", "--requeue")
    for option in (*options, "--account=lab"):
        assert f"#SBATCH {option}\n" in script
    path = tmp_path / "job.sh"
    path.write_text(script)
    assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
    with pytest.raises(ValueError, match="parts must be at least 1 and finite, got 0"):
        slurm_script(EXAMPLE, "a", parts=0)


def test_a_finished_sweep_is_read_back(tmp_path):
    engines = {"name": "bf16-fp32router/vllm-bf16", "replay": "R2"}
    tis = {"name": "grpo+tis", "correction_clip": 5.0}
    configs = {"none": run_config(BASE), "TIS": run_config(BASE, {"objective": tis, "engines": engines})}
    write_finished_sweep(tmp_path, list(configs.values()), list(configs))
    for arm, config in configs.items():
        name, found = read_run(tmp_path, arm)
        assert found.as_dict() == config.as_dict()
        assert name.endswith(arm)
    with pytest.raises(ValueError, match=r"2 arms\. Name one with --arm: (none, TIS|TIS, none)"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("command", "text", "message"),
    [
        ("slurm", "[over]\nlerning_rate = [1e-3]", r"'lerning_rate'; did you mean 'learning_rate'"),
        (
            "verl",
            "[over]\nlearning_rate = [1e-4, 1e-3]\nseed = [0, 1]",
            r"c must describe one run per arm, got 4 that differ in learning_rate\. .* under \[arms\]",
        ),
        ("lab", "a: [", r"/c: invalid YAML in line \d"),
    ],
)
def test_what_cannot_be_exported_is_one_error(tmp_path, command, text, message):
    base = '[base]\ntask = "add"\nmodel = "tiny-moe"\nengines = "bf16/bf16"\n'
    (tmp_path / "c").write_text((base if command != "lab" else "") + text)
    result = CliRunner().invoke(app, ["export", command, str(tmp_path / "c")])
    assert result.exit_code == 2
    assert re.search(message, " ".join(result.stderr.split()))
    assert not result.stdout


def test_verl_export_takes_the_first_seed(tmp_path):
    (tmp_path / "c.toml").write_text('[base]\ntask = "add"\nmodel = "tiny-moe"\n[over]\nseed = [3, 4]')
    assert read_run(tmp_path / "c.toml")[1].seed == 3


def test_the_commands(tmp_path):
    runner = CliRunner()
    shown = runner.invoke(app, ["export", "verl", str(EXAMPLE), "--arm", "ACRL"])
    assert shown.exit_code == 0, shown.output
    assert "simlab_grpo_acrl" in shown.stdout
    wrong = runner.invoke(app, ["export", "verl", str(EXAMPLE), "--arm", "nobody"])
    assert wrong.exit_code == 2
    assert "allowed: TIS, ACRL, DFPO" in " ".join(wrong.output.split())
    unnamed = runner.invoke(app, ["export", "verl", str(EXAMPLE)])
    assert unnamed.exit_code == 2
    assert "Name one with --arm: TIS, ACRL, DFPO" in " ".join(unnamed.output.split())
    (tmp_path / "c.yaml").write_text(YAML)
    back = runner.invoke(app, ["export", "lab", str(tmp_path / "c.yaml")])
    assert back.exit_code == 0, back.output
    assert tomllib.loads(back.stdout)["base"]["task"] == "add"
    assert "differs: data and model of the YAML" in back.stderr
    job = runner.invoke(app, ["export", "slurm", str(EXAMPLE)])
    assert "simlab sweep" in job.stdout
