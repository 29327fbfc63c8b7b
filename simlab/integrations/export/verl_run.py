"""Convert a simlab run into a verl run of Qwen3-30B-A3B: GRPO on DAPO-Math-17k as in *hacking*."""

import shlex
from dataclasses import dataclass
from typing import Any

from simlab.core.catalog import lookup
from simlab.core.json_value import Json
from simlab.integrations.export.machine import COMMON, FSDP, MEGATRON
from simlab.integrations.export.verl_objective import ACTOR, PLUGIN_MASKS, Draft, map_objective
from simlab.integrations.verl.settings import PREFIX
from simlab.sweeps.config import RunConfig, recipe_of
from simlab.training.optimizer import AdamW
from simlab.training.recipe import Recipe

Overrides = dict[str, Json]

BACKENDS: dict[str, Overrides] = {"megatron": MEGATRON, "fsdp": FSDP}

# simlab's default learning rate becomes this one of a large model; other learning rates scale in proportion.
LARGE_RATE, LAB_RATE = 1e-6, AdamW().learning_rate
# hacking Sec. 4.1 samples 128 problems where simlab's default is 8.
PROMPTS_PER_PROMPT = 16

TRAIN_DTYPES = {
    "f32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "a100-bf16": "bfloat16",
    "h100-bf16": "bfloat16",
    "bf16-fp32router": "bfloat16",
    "bf16-ordered": "bfloat16",
}
INFER_SETTINGS: dict[str, Overrides] = {
    "f32": {"dtype": "float32"},
    "bf16": {"dtype": "bfloat16"},
    "vllm-bf16": {"dtype": "bfloat16"},
    "a100-bf16": {"dtype": "bfloat16"},
    "h100-bf16": {"dtype": "bfloat16"},
    "fp16": {"dtype": "float16"},
    "fp8-e4m3": {"dtype": "bfloat16", "quantization": "fp8"},
    "h100-fp8": {"dtype": "bfloat16", "quantization": "fp8"},
    "ada-fp8": {"dtype": "bfloat16", "quantization": "fp8"},
    "b200-fp8": {"dtype": "bfloat16", "quantization": "fp8"},
    "bf16-fp8kv": {"dtype": "bfloat16", "+engine_kwargs.vllm.kv_cache_dtype": "fp8"},
    "bf16-ordered": {"dtype": "bfloat16", "full_determinism": True},
}
"""Engines that vLLM has, as settings of `actor_rollout_ref.rollout`; a `+` is a key new to verl's config."""

ROLLOUT = "actor_rollout_ref.rollout"


@dataclass(frozen=True)
class VerlRun:
    """Hydra overrides by key (`+` before a new one), environment variables, and differences from simlab."""

    backend: str
    overrides: Overrides
    environment: dict[str, str]
    notes: tuple[str, ...]


def verl_run(config: RunConfig, backend: str = "megatron") -> VerlRun:
    """Convert a simlab run. `ValueError` names every field without a counterpart in verl."""
    draft = Draft(backend, {**COMMON, **lookup(BACKENDS, backend, "backend")})
    recipe = recipe_of(config)
    objective = config.as_dict()["objective"]
    map_objective(draft, recipe.objective, objective if isinstance(objective, str) else objective["name"])
    _engines(draft, config.as_dict()["engines"], recipe)
    _optimizer(draft, recipe.optimizer)
    _schedule(draft, config.as_dict()["schedule"], config.as_dict()["steps"])
    _sampling(draft, recipe.sampling)
    _sizes(draft, config, recipe)
    _write_other_settings(draft, config, recipe)
    if draft.rejected:
        raise ValueError("cannot be exported to verl: " + "; ".join(draft.rejected))
    if draft.environment or any(map(_names_plugin, draft.overrides.values())):
        draft.notes.append(
            "needs the plug-in: pip install '.[verl]' from a checkout of simlab, in verl's environment"
        )
    return VerlRun(backend, draft.overrides, draft.environment, tuple(draft.notes))


def _names_plugin(value: Json) -> bool:
    """Return whether a setting is a loss, an estimator or a mask that verl lacks."""
    return "simlab_" in str(value) or not PLUGIN_MASKS.isdisjoint(str(value).split(","))


def _engines(draft: Draft, named: Any, recipe: Recipe) -> None:
    table = named if isinstance(named, dict) else {"name": named}
    extra = set(table) - {"name", "replay"}
    train, _, infer = str(table.get("name", "")).partition("/")
    if extra or train not in TRAIN_DTYPES:
        draft.rejected.append(
            f"engines: train {', '.join(extra) or train!r} (known: {', '.join(TRAIN_DTYPES)})"
        )
    elif draft.backend == "megatron":
        draft.overrides[f"{ACTOR}.megatron.dtype"] = TRAIN_DTYPES[train]
        if train == "bf16-fp32router":
            draft.overrides[f"+{ACTOR}.megatron.override_transformer_config.moe_router_dtype"] = "fp32"
    elif train == "bf16-fp32router":
        draft.rejected.append("engines: train 'bf16-fp32router' under fsdp (megatron has it)")
    else:
        draft.overrides[f"{ACTOR}.fsdp_config.dtype"] = TRAIN_DTYPES[train]
    if infer not in INFER_SETTINGS:
        draft.rejected.append(f"engines: infer {infer!r} (known: {', '.join(INFER_SETTINGS)})")
    for key, value in INFER_SETTINGS.get(infer, {}).items():
        new = "+" if key.startswith("+") else ""
        draft.overrides[f"{new}{ROLLOUT}.{key.removeprefix('+')}"] = value
    replay = recipe.engines.replay
    if replay != "none" and draft.backend != "megatron":
        draft.rejected.append(f"engines.replay {replay!r} under fsdp (megatron has it)")
    elif replay != "none":
        draft.overrides[f"{ACTOR}.megatron.router_replay.mode"] = replay
        draft.overrides[f"{ROLLOUT}.enable_rollout_routing_replay"] = replay == "R3"


def _optimizer(draft: Draft, optimizer: Any) -> None:
    scaled = float(f"{LARGE_RATE * optimizer.learning_rate / LAB_RATE:.6g}")
    draft.overrides |= {
        f"{ACTOR}.optim.lr": scaled,
        f"{ACTOR}.optim.betas": [optimizer.beta1, optimizer.beta2],
        f"{ACTOR}.optim.weight_decay": optimizer.weight_decay,
        f"{ACTOR}.optim.clip_grad": optimizer.max_grad_norm,
    }
    draft.notes.append(
        f"learning rate: simlab {optimizer.learning_rate:g} maps to {scaled:g}; other rates scale "
        f"proportionally"
    )
    if optimizer.eps != AdamW().eps:
        draft.rejected.append(f"optimizer.eps {optimizer.eps:g}")


def _schedule(draft: Draft, schedule: dict[str, Json], steps: int) -> None:
    name, rest = schedule["name"], dict(schedule)
    if rest.get("lr_warmup_steps"):
        draft.overrides[f"{ACTOR}.optim.lr_warmup_steps"] = rest["lr_warmup_steps"]
    if name in ("cosine", "linear"):
        _decay(draft, name, rest, steps)
    elif name in ("length-triggered", "mismatch-triggered"):
        if draft.backend != "fsdp":
            draft.rejected.append(f"schedule {name!r} under megatron (the plug-in reacts under fsdp)")
        if rest.get("metric", "rms_log_rho") != "rms_log_rho":
            draft.rejected.append(f"schedule.metric {rest['metric']!r} (rms_log_rho is there)")
        weights = draft.overrides.get("algorithm.rollout_correction.rollout_is")
        if name == "mismatch-triggered" and weights != "token":
            draft.rejected.append(
                f"schedule {name!r} without token weights, through which the plug-in sees it"
            )
        draft.environment[f"{PREFIX}SCHEDULE"] = name
        early = "MISMATCH_EARLY" if name == "mismatch-triggered" else "EARLY"
        names = {"early": early, "min_lr_ratio": "FINAL"} | {
            key: key.upper() for key in ("rise", "patience", "delay", "smoothing", "cooldown")
        }
        draft.environment |= {f"{PREFIX}{names[key]}": f"{rest[key]:g}" for key in names if key in rest}
    elif name != "constant":
        draft.rejected.append(f"schedule {name!r}")


def _decay(draft: Draft, name: str, schedule: dict[str, Json], steps: int) -> None:
    min_lr_ratio = schedule.get("min_lr_ratio", 0.0)
    if draft.backend == "megatron":
        draft.overrides[f"{ACTOR}.optim.lr_decay_style"] = name
        draft.overrides[f"{ACTOR}.optim.lr_decay_steps"] = schedule["steps"]
        draft.overrides[f"{ACTOR}.optim.min_lr"] = draft.overrides[f"{ACTOR}.optim.lr"] * min_lr_ratio
    elif name == "cosine":
        draft.overrides[f"{ACTOR}.optim.lr_scheduler_type"] = "cosine"
        draft.overrides[f"{ACTOR}.optim.min_lr_ratio"] = min_lr_ratio
        if schedule["steps"] != steps:
            # verl's trainer writes its own length over total_training_steps.
            draft.rejected.append(f"schedule.steps {schedule['steps']} under fsdp (the run's {steps} alone)")
    else:
        draft.rejected.append("schedule 'linear' under fsdp (megatron has it)")


def _sampling(draft: Draft, sampling: Any) -> None:
    draft.overrides |= {
        f"{ROLLOUT}.temperature": sampling.temperature,
        f"{ROLLOUT}.top_k": -1 if sampling.top_k is None else sampling.top_k,
        f"{ROLLOUT}.top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        f"{ROLLOUT}.logprobs_mode": "processed_logprobs" if sampling.processed else "raw_logprobs",
    }
    if sampling.temperature != 1:
        draft.notes.append("temperature: verl divides the trainer's logits too; simlab scores at 1")
    if sampling.noise is not None:
        draft.rejected.append("sampling.noise")
    if sampling.min_length:
        draft.rejected.append(f"sampling.min_length {sampling.min_length}")


def _sizes(draft: Draft, config: RunConfig, recipe: Recipe) -> None:
    prompts = recipe.prompts_per_step * PROMPTS_PER_PROMPT
    draft.overrides |= {
        "data.train_batch_size": prompts,
        f"{ROLLOUT}.n": recipe.group_size,
        f"{ACTOR}.ppo_mini_batch_size": prompts // recipe.minibatches,
        "trainer.total_training_steps": config.as_dict()["steps"],
        "data.seed": config.as_dict()["seed"],
        f"{ACTOR}.data_loader_seed": config.as_dict()["seed"],
    }
    draft.notes.append(f"{prompts} prompts per step (simlab: {recipe.prompts_per_step})")


def _write_other_settings(draft: Draft, config: RunConfig, recipe: Recipe) -> None:
    table = config.as_dict()
    if recipe.entropy_coeff is not None:
        draft.overrides[f"{ACTOR}.entropy_coeff"] = recipe.entropy_coeff
    if recipe.kl_loss_coef is not None:
        draft.overrides |= {
            f"{ACTOR}.use_kl_loss": True,
            f"{ACTOR}.kl_loss_coef": recipe.kl_loss_coef,
            f"{ACTOR}.kl_loss_type": "low_var_kl",
        }
    if table["gradient_site"]:
        draft.rejected.append("gradient_site")
    if recipe.critic is not None:
        draft.rejected.append("critic")
    if recipe.staleness:
        draft.rejected.append(f"staleness {recipe.staleness}")
    if recipe.old_log_probs == "rollout":
        if draft.overrides[f"{ACTOR}.policy_loss.loss_mode"] != "vanilla":
            draft.rejected.append("old_log_probs 'rollout' with this objective (verl: vanilla only)")
        draft.overrides["algorithm.rollout_correction.bypass_mode"] = True
    draft.notes.append(
        "task, model and warm start exist in simlab only: replaced by Qwen3-30B-A3B on DAPO-Math-17k"
    )


def verl_script(run: VerlRun, name: str, dump: str | None = None) -> str:
    """Return the launch script of a run, to be started on the head node of its Ray cluster."""
    environment = dict(run.environment)
    if dump is not None:
        environment[f"{PREFIX}DUMP"] = dump
    overrides = overrides_of(run, name, environment)
    lines = [
        "#!/usr/bin/env bash",
        f"# {name}: GRPO on DAPO-Math-17k with Qwen3-30B-A3B, vLLM and {run.backend}; verl 0.9.",
        *(f"# {note}" for note in run.notes),
        "set -euo pipefail",
        "export CUDA_DEVICE_MAX_CONNECTIONS=1",
        *(f"export {key}={shlex.quote(text)}" for key, text in environment.items()),
        'MODEL_PATH="${MODEL_PATH:-Qwen/Qwen3-30B-A3B}"',
        'TRAIN_FILES="${TRAIN_FILES:-$PWD/data/dapo-math-17k.parquet}"',
        'VAL_FILES="${VAL_FILES:-$PWD/data/aime-2024.parquet}"',
        "",
        "python3 -m verl.trainer.main_ppo \\",
        '  actor_rollout_ref.model.path="$MODEL_PATH" \\',
        '  data.train_files="$TRAIN_FILES" \\',
        '  data.val_files="$VAL_FILES" \\',
        *(f"  {shlex.quote(text)} \\" for text in overrides),
        '  "$@"',
    ]
    return "\n".join(lines) + "\n"


def overrides_of(run: VerlRun, name: str, environment: dict[str, str]) -> list[str]:
    """Return all overrides in Hydra's grammar; Ray needs variables as text."""
    table = {**run.overrides, "trainer.experiment_name": name}
    variables = [
        f"+ray_kwargs.ray_init.runtime_env.env_vars.{key}={_quote(text)}" for key, text in environment.items()
    ]
    return [f"{key}={_text(value)}" for key, value in table.items()] + variables


def _text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_text, value)) + "]"
    if isinstance(value, str) and not value.startswith("${"):
        # Without quotes 0.5_5 would be the number 0.55.
        plain = value[:1].isalpha() and value.replace("_", "").replace("-", "").isalnum()
        return value if plain else _quote(value)
    return str(value)


def _quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
