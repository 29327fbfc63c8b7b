"""Configs are checked before any compute, and equal runs have equal keys however they are written."""

import json
import os
import pickle
import shutil

import jax
import numpy as np
import pytest

from simlab.core.paths import PACKAGE_ROOT
from simlab.engines import ENGINE_PAIRS, ENGINES, find_pair
from simlab.formats import FORMATS
from simlab.models.config import MODELS
from simlab.models.parameters import init_params
from simlab.objectives import resolve
from simlab.sweeps import code_version
from simlab.sweeps.code_version import code_digest
from simlab.sweeps.config import RunConfig, columns, recipe_of, run_config, run_key
from simlab.sweeps.config_reader import FieldError
from simlab.sweeps.file import read_file
from simlab.sweeps.plan import expand
from simlab.sweeps.start import load_initial_params, policy_file
from simlab.tasks import TASKS
from simlab.training.checkpoints import save_tree
from simlab.training.schedules import SCHEDULES
from simlab.training.step import reads_vocabulary
from tests.sweeps.small import BASE

FLAGSHIP = {
    "engines": "f32/fp8-s4-truncated",
    "objective": {"name": "grpo+tis", "correction_clip": 5.0},
    "task": "add",
    "model": "tiny-dense",
    "steps": 10,
}

TOML = """
[base]
engines = "f32/fp8-s4-truncated"
task = "add"
model = "tiny-dense"
steps = 10
[base.objective]
name = "grpo+tis"
correction_clip = 5
[over]
seed = [0, 1]
optimizer.learning_rate = [1e-3]
"""


def test_recipe_of_builds_the_written_recipe():
    recipe = recipe_of(run_config(FLAGSHIP, {"optimizer.learning_rate": 1}))
    expected = find_pair("f32/fp8-s4-truncated")
    assert repr(recipe.engines) == repr(expected)
    assert recipe.objective == resolve("grpo+tis", correction_clip=5.0)
    assert recipe.optimizer.learning_rate == 1.0
    assert isinstance(recipe.optimizer.learning_rate, float)
    assert recipe.task == TASKS["add"]()
    assert recipe.model == MODELS["tiny-dense"]


def test_run_config_is_idempotent():
    changes = {
        "engines.infer.residual": {"name": "e5m2", "rounding": "toward_zero"},
        "engines.infer.projection.activations.format.mantissa_bits": 3,
        "schedule": {"name": "cosine", "steps": 10.0},
        "warm_start": {"steps": 20},
    }
    config = run_config(FLAGSHIP, changes)
    assert run_config(config) == config
    assert isinstance(config, RunConfig)
    assert json.loads(json.dumps(config.as_dict())) == config.as_dict()
    sites = recipe_of(config).engines.infer
    assert sites.projection.activations.format.mantissa_bits == 3
    assert (
        sites.projection.activations.scaling
        == find_pair(FLAGSHIP["engines"]).infer.projection.activations.scaling
    )


def test_a_format_alone_rounds_to_nearest_and_saturates():
    named, given = (
        run_config({**FLAGSHIP, "engines": "f32/f32"}, {"engines.infer.residual": residual})
        for residual in ("e5m2", {"format": {"name": "e5m2"}})
    )
    sites = [recipe_of(config).engines.infer.residual for config in (named, given)]
    assert repr(sites[0]) == repr(sites[1])
    assert run_config(given) == given


@pytest.mark.parametrize(
    "changes",
    [
        {"critic": {}, "objective": "ppo"},
        {"gradient_site": "e5m2"},
        {"staleness": 2},
        {"engines.replay": "R3", "model": "tiny-moe"},
        {"schedule": "length-triggered", "schedule.rise": 1.5},
    ],
    ids=repr,
)
def test_new_fields_are_read_by_their_types(changes):
    config = run_config(FLAGSHIP, changes)
    assert run_config(config) == config
    assert recipe_of(config) is not None
    assert run_key(config, 4) != run_key(run_config(FLAGSHIP), 4)


def test_toml_and_python_give_the_same_keys(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(TOML)
    described = read_file(path)
    from_file = [run.key for run in expand(described.base, described.grid, 4)]
    base = {**FLAGSHIP, "steps": 10.0, "objective": {"correction_clip": np.float32(5), "name": "grpo+tis"}}
    changes = [{"seed": seed, "optimizer.learning_rate": np.float32(1e-3)} for seed in (0, 1)]
    assert from_file == [run_key(run_config(base, c), 4, _program(base)) for c in changes]


def _program(base):
    from simlab.sweeps.program import program_name, swept_recipe

    return program_name(swept_recipe(run_config(base)))


def test_run_key_changes_with_every_field():
    keys = {
        run_key(run_config(FLAGSHIP, changes), 4)
        for changes in (
            {},
            {"seed": 1},
            {"steps": 11},
            {"objective": "grpo+tis"},
            {"engines": "f32/bf16"},
            {"prompts_per_step": 4},
            {"sampling.temperature": 0.9},
            {"task.train_size": 64},
            {"model.num_hidden_layers": 1},
            {"schedule.lr_warmup_steps": 5},
            {"entropy_coeff": 0.1},
        )
    }
    keys |= {run_key(run_config(FLAGSHIP), 8), run_key(run_config(FLAGSHIP), 4, "another program")}
    assert len(keys) == 13


def test_run_key_changes_with_the_code(monkeypatch, tmp_path):
    def key_where(changed: str) -> str:
        with open(tmp_path / changed, "a") as file:
            file.write("# changed\n")
        code_digest.cache_clear()
        return run_key(run_config(FLAGSHIP), 4)

    key = run_key(run_config(FLAGSHIP), 4)
    shutil.copytree(PACKAGE_ROOT, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.pyc"))
    monkeypatch.setattr(code_version, "PACKAGE_ROOT", tmp_path)
    assert key_where("cli/run.py") == key
    assert key_where("engines/norm.py") != key
    code_digest.cache_clear()


def test_trained_policy_has_another_name_with_other_code(monkeypatch, tmp_path):
    task, model = TASKS["add"](), MODELS["tiny-dense"]
    first = policy_file({"seed": 0}, task, model, tmp_path)
    monkeypatch.setattr("simlab.sweeps.start.code_digest", lambda: "other code")
    assert policy_file({"seed": 0}, task, model, tmp_path) != first


def test_limits_of_a_format_stay_in_the_canonical_form():
    site = "engines.infer.projection.activations"
    given = {"mantissa_bits": 2, "max_finite": float(FORMATS["e5m2"].max_finite)}
    for wide in ("e5m2", "bf16"):
        base = {"name": wide, **given, "mantissa_bits": 3} if wide == "e5m2" else {"name": wide, **given}
        config = run_config(FLAGSHIP, {f"{site}.format": base})
        again = run_config(config.as_dict())
        assert again == config
        for each in (config, again):
            assert (
                recipe_of(each).engines.infer.projection.activations.format.max_finite == given["max_finite"]
            )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"optimizer.lerning_rate": 1},
            r"optimizer: unknown field 'lerning_rate'; did you mean 'learning_rate'\?",
        ),
        ({"optimizer.learning_rate": -1}, r"optimizer.learning_rate must be at least 0, got -1.0"),
        ({"optimizer.learning_rate": float("inf")}, r"learning_rate must be finite in float32, got inf"),
        ({"sampling.top_p": float("inf")}, r"sampling.top_p must be above 0 and at most 1, got inf"),
        (
            {"optimizer.learning_rate": "high"},
            r"optimizer.learning_rate must be a number, got 'high'",
        ),
        ({"steps": 2.5}, r"steps must be an integer, got 2.5"),
        ({"steps": 0}, r"steps must be at least 1 and at most 10000000, got 0"),
        ({"seed": True}, r"seed must be an integer, got True"),
        ({"steps": "100"}, r"steps must be an integer, got '100'"),
        ({1: 2}, r"a field of the run must be a name, got 1\."),
        ({"entropy_coeff": -1}, r"entropy_coeff must be at least 0, got -1.0"),
        ({"group_size": 1}, r"group_size must be at least 2 for the advantage grpo, .*, got 1\."),
        ({"stepsize": 1}, r"'stepsize'; .*allowed: engines, .* \(28 in all: help\(simlab.training.recipe"),
        ({"lr_warmup_steps": 3}, r"'lr_warmup_steps'; did you mean 'schedule.lr_warmup_steps'\?$"),
        ({"correction_clip": 3.0}, r"'correction_clip'; did you mean 'objective.correction_clip'\?$"),
        ({"acrl_gamma": 3.0}, r"'acrl_gamma'; did you mean 'objective.acrl_gamma'\?$"),
        ({"qk_norm": 1}, r"'qk_norm'; did you mean 'model.qk_norm'\?$"),
        ({"lr": 1e-3}, r"the run 'lr'; did you mean 'learning_rate'\?$"),
        ({"rollout.n": 4}, r"the run 'rollout.n'; did you mean 'group_size'\?$"),
        ({"actor": {"optim": {"lr": 1}}}, r"the run 'actor.optim.lr'; did you mean 'learning_rate'\?$"),
        ({"ppo_mini_batch_size": 4}, r"did you mean 'minibatches'\?$"),
        ({"optimizer.lr": 1e-3}, r"optimizer: unknown field 'lr'; did you mean 'learning_rate'\?$"),
        ({"objective.clip_ratio_low": 0.1}, r"of objective 'clip_ratio_low'; did you mean 'clip_low'\?$"),
        (
            {"objective": {"name": "grpo", "correction_clip": 3.0}},
            r"unknown field of objective 'correction_clip', which 'grpo\+tis' has; allowed: advantage, ",
        ),
        (
            {"objective": {"name": "grpo+tis", "acrl_gamma": 3.0}},
            r"unknown field of objective 'acrl_gamma', which 'grpo\+acrl' has; allowed: advantage, ",
        ),
        (
            {"engines.infer.kv_cache": "bf16"},
            r"engines.infer: unknown field 'kv_cache'; did you mean 'attention.cache'\?",
        ),
        ({"stepz": 3}, r"unknown field of the run 'stepz'; did you mean 'steps'\? allowed: engines, "),
        (
            {"engines": "f32/fp7"},
            r"engines: unknown inference engine of the pair 'f32/fp7', 'fp7'; allowed: f32, ",
        ),
        ({"objective": "grpo+tos"}, r"objective: unknown modifier 'tos'; did you mean .* allowed: tis, "),
        ({"objective": "grpo+xyzzy"}, r"unknown modifier 'xyzzy'; allowed: tis, .* simlab list objectives"),
        (
            {"objective.clip": 2},
            r"unknown field of objective 'clip'; did you mean 'clip_low' and 'clip_high'",
        ),
        ({"clip": 2}, r"unknown field of the run 'clip'; did you mean 'clip_low' and 'clip_high'"),
        ({"width": 2}, r"unknown field of the run 'width'; did you mean 'model.hidden_size'"),
        ({"model.width": 2}, r"model: unknown field 'width'; did you mean 'hidden_size'"),
        ({"num_layers": 2}, r"unknown field of the run 'num_layers'; did you mean 'model.num_hidden_layers'"),
        ({"max_tokens": 2}, r"unknown field of the run 'max_tokens'; did you mean 'response_length'"),
        (
            {"engines": ENGINES["bf16"]},
            r"^engines must be an engine pair, got an engine\. Use EnginePair\(tra",
        ),
        ({"task": ENGINES["bf16"]}, r"^task must be a name .* got a record of type Engine\.$"),
        ({"objective.clip_low": -1}, r"objective.clip_low must be at least 0, got -1.0\.$"),
        ({"objective": 3}, r"objective must be a name or a table of fields, got 3"),
        ({"task": "addd"}, r"task: unknown task 'addd'; did you mean 'add'\?"),
        ({"task.difficulty": 20}, r"task.difficulty must be 1 to 8 digits, got 20"),
        ({"model.hidden_size": "wide"}, r"model.hidden_size must be an integer, got 'wide'"),
        ({"metrics": "pcc"}, r"^metrics must be a list of names, got 'pcc'\.$"),
        (
            {"metrics": ["chi2"]},
            r"^metrics must be names .*, got 'chi2'; did you mean 'chi2_token'\?",
        ),
        ({"metrics": ["rollout_corr/k3_kl"]}, r"^metrics must be names .*; did you mean 'k3_kl'\?"),
        (
            {"schedule": {"name": "mismatch-triggered", "metric": "pcc"}, "metrics": []},
            r"^schedule.metric must be a number that the run records, got 'pcc'; .*allowed: rms_log_rho, rew",
        ),
        ({"old_log_probs": "x"}, r"^old_log_probs must be train or rollout, got 'x'\.$"),
        ({"model.head_dim": 3}, r"^model.head_dim must be even, .*, got 3\.$"),
        ({"sampling.noise": {"scale": 1, "kind": "x"}}, r"^sampling.noise.kind must be one of fresh, .*'x'"),
        ({"critic": {}}, r"^critic must be none without the advantage gae, got a critic"),
        ({"prompts_per_step": 7}, r"minibatches must divide prompts_per_step, got 4 and 7"),
        (
            {"warm_start": "zzz"},
            r"warm_start: no file 'zzz'; there are: (\S+, ){8}\.\.\. \(\d+ in all: experiments/warm_starts",
        ),
        (
            {"warm_start": "add-tiny-llama-0"},
            r"^model must be tiny-llama, the model of the warm start add-tiny-llama-0, got tiny-dense\.$",
        ),
        (
            {"warm_start": "chain-moe-5", "model.num_hidden_layers": 1},
            r"^model must be tiny-moe with qk_norm = False, .*, got tiny-dense with num_hidden_layers = 1\.$",
        ),
        ({"sampling.top_p": 2}, r"sampling.top_p must be above 0 and at most 1, got 2.0"),
        ({"kl_loss_coef": -0.1}, "kl_loss_coef must be at least 0, got -0.1"),
        ({"kl_loss_coeff": 1}, r"unknown field of the run 'kl_loss_coeff'; did you mean 'kl_loss_coef'"),
        (
            {"infer_rounding": "stochastic"},
            r"engines.infer.projection.activations.rounding must be one of nearest.*, got 'stochastic'",
        ),
        (
            {"engines.train.projection.weights": {"name": "e4m3fn", "rounding": "stochastic"}},
            r"engines.train.projection.weights.rounding must be one of .* Only weights of the inference ",
        ),
        ({"engines.infer.residual": "e9m9"}, r"engines.infer.residual: unknown format 'e9m9'"),
    ],
)
def test_bad_value_names_field_value_and_allowed(changes, message):
    with pytest.raises(ValueError, match=message):
        run_config(FLAGSHIP, changes)


def test_equal_sets_of_metrics_are_one_run():
    first, second = (run_config(FLAGSHIP, {"metrics": each}) for each in (["pcc", "k3_kl"], ("k3_kl", "pcc")))
    assert run_key(first, 4) == run_key(second, 4) != run_key(run_config(FLAGSHIP), 4)
    assert first.recipe.metrics == ("k3_kl", "pcc")


@pytest.mark.parametrize("model", [{}, {"model": "tiny-dense"}])
@pytest.mark.parametrize("content", ["junk", "array", "truncated"])
def test_warm_start_of_another_kind_is_one_error(tmp_path, content, model):
    path = tmp_path / "policy.npz"
    if content == "truncated":
        np.savez(path, a=np.zeros(1000))
        path.write_bytes(path.read_bytes()[:100])
    elif content == "array":
        with open(path, "wb") as file:
            np.save(file, np.zeros(3))
    else:
        path.write_bytes(b"junk")
    with pytest.raises(ValueError, match=r"policy\.npz cannot be read: it is damaged, or not a ch") as caught:
        run_config({"task": "add", "warm_start": str(path), **model})
    assert "pickle" not in str(caught.value)


def test_group_of_one_is_allowed_without_a_group_baseline():
    assert recipe_of(run_config(FLAGSHIP, {"objective": "reinforce", "group_size": 1})).group_size == 1


def test_run_config_rejects_stages_that_do_not_fit():
    with pytest.raises(
        ValueError, match=r"objective.advantage must be one number per sequence for MinReplace, got .*Gae"
    ):
        run_config(FLAGSHIP, {"objective": "dfpo_min", "objective.advantage": "gae", "critic": {}})


@pytest.mark.parametrize(
    "objective",
    [
        "ipo+score_centering",
        {"name": "gpg+score_centering", "top_k": 2},
        {"name": "dppo_tv", "divergence_top_k": 2},
        {"name": "gpg", "advantage": "otb_full_tail"},
    ],
)
def test_run_config_allows_objectives_of_the_vocabulary(objective):
    assert reads_vocabulary(recipe_of(run_config({**BASE, "objective": objective})))


def test_run_config_names_a_missing_field():
    with pytest.raises(ValueError, match="task must be given, for example task = 'add'"):
        run_config({})


def test_run_config_reads_every_catalog_name():
    for name in ENGINE_PAIRS:
        assert columns(run_config(FLAGSHIP, {"engines": name}))["engines"] == name
    for name in TASKS:
        assert columns(run_config(FLAGSHIP, {"task": name}))["task"] == name
    for name in MODELS:
        assert columns(run_config(FLAGSHIP, {"model": name}))["model"] == name
    for name in SCHEDULES:
        assert columns(run_config(FLAGSHIP, {"schedule": name}))["schedule"] == name


def test_a_policy_that_was_replaced_is_not_loaded(tmp_path):
    path = tmp_path / "policy.npz"
    recipe = recipe_of(run_config(BASE))
    for seed in (0, 1):
        save_tree(path, init_params(jax.random.key(seed), recipe.model))
        os.utime(path, ns=(seed, seed))
        if seed == 0:
            start = run_config(BASE, {"warm_start": str(path)}).warm_start
    with pytest.raises(ValueError, match=r"policy.npz has changed: its sha256 is "):
        load_initial_params(start, recipe.task, recipe.model, 0, tmp_path)
    with pytest.raises(ValueError, match=r"policy.npz has changed: its sha256 is "):
        run_config(BASE, {"warm_start": start})


def test_a_policy_file_has_no_settings(tmp_path):
    path = tmp_path / "policy.npz"
    save_tree(path, init_params(jax.random.key(0), recipe_of(run_config(BASE)).model))
    with pytest.raises(ValueError, match=r"a file has no steps. Remove it, or file"):
        run_config(BASE, {"warm_start": {"file": str(path), "steps": 7}})


def test_run_key_identifies_warm_start_by_content(tmp_path):
    params = init_params(jax.random.key(0), recipe_of(run_config(BASE)).model)
    paths = [save_tree(tmp_path / name, params) for name in ("a.npz", "b.npz")]
    configs = [run_config(BASE, {"warm_start": str(path)}) for path in paths]
    assert run_key(configs[0], 2) == run_key(configs[1], 2) != run_key(run_config(BASE), 2)
    with pytest.raises(ValueError, match=r"model must be that of the warm start a, .* no preset, got tiny-d"):
        run_config(FLAGSHIP, {"warm_start": str(paths[0]), "model.num_hidden_layers": 1})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.qk_norm": "false"}, "must be true or false, got 'false'"),
        ({"gradient_checkpointing": "false"}, "must be true or false"),
        ({"task.train_size": "2"}, "must be an integer, got '2'"),
        ({"task.train_size": 2.7}, "must be an integer, got 2.7"),
        ({"objective.clip_low": "0.1"}, "must be a number, got '0.1'"),
        ({"objective.clip_low": True}, "must be a number, got True"),
        ({"objective.group_filter": "no"}, "must be true or false, got 'no'"),
        ({"objective.aggregation": 2}, "must be a name, got 2"),
    ],
)
def test_values_of_another_type_are_errors(changes, message):
    with pytest.raises(ValueError, match=message):
        run_config(BASE, changes)


def test_base_takes_dotted_names_as_changes_do():
    site = "engines.infer.projection.weights.format.mantissa_bits"
    start = {"task": "add", "model": "tiny-dense"}
    for changes in ({"optimizer.learning_rate": 1e-3}, {site: 3}, {"objective.clip_high": 0.3}):
        assert run_config(start | changes) == run_config(start, changes)
    assert recipe_of(run_config(start, {site: 3})).engines.infer.projection.weights.format.mantissa_bits == 3
    with pytest.raises(ValueError, match="unknown field 'mantisa_bits'; did you mean 'mantissa_bits'"):
        run_config(start, {site.replace("mantissa", "mantisa"): 3})


def test_table_without_a_name_changes_the_default():
    start = {"task": "add", "model": "tiny-dense"}
    assert run_config(start | {"objective": {"clip_high": 0.3}}) == run_config(start | {"clip_high": 0.3})
    changed = run_config(start | {"engines": {"infer": {"residual": "e5m2"}}})
    assert changed.table["engines"]["name"] == "f32/f32"


def test_errors_of_fields_pass_between_processes():
    error = FieldError("objective.clip_high", "must be at least 0, got -1")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
