"""Convert a verl YAML into the nearest simlab run, and list the differences."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from simlab.core.catalog import lookup
from simlab.core.json_value import Json
from simlab.integrations.export.verl_objective import ESTIMATORS, LOSS_MODES, NEVER, NUMBERS, VARIANTS
from simlab.integrations.export.verl_run import LAB_RATE, LARGE_RATE, PROMPTS_PER_PROMPT
from simlab.integrations.export.verl_yaml import DEFAULTS, Flat, flat_config, full_key, get, variables
from simlab.objectives import AGGREGATIONS, OBJECTIVES, override_names

KNOWN_PRESETS = {
    "vanilla": "grpo",
    **{mode: preset for preset, mode in LOSS_MODES.items() if mode != "vanilla"},
    "simlab_grpo": "grpo",
    **{
        f"{mode}_{modifier}": mode.removeprefix("simlab_")
        for modifier in ("acrl", "opsm")
        for mode in VARIANTS.values()
    },
}
KV_CACHE = "rollout.engine_kwargs.vllm.kv_cache_dtype"
REACTING = ("rise", "patience", "delay", "final", "early", "mismatch_early", "smoothing", "cooldown")
# The environment variable of the plug-in and the field of the schedule.
RENAMED = {"final": "min_lr_ratio", "mismatch_early": "early"}
REJECTIONS = {"seq_mean_k1": "geo_mask", "seq_mean_k3": "k3_mask"}


@dataclass(frozen=True)
class Nearest:
    """A run in plain values of simlab, and its differences from the YAML."""

    config: dict[str, Json]
    differences: list[str]


def nearest_config(text: str) -> Nearest:
    """Return the run of simlab that is nearest to a verl config in YAML.

    Keys that are missing have verl's defaults. Raises `ValueError` for text that is not a YAML mapping and
    for an unknown loss mode, and `ImportError` with the install command if PyYAML is missing.
    """
    flat = flat_config(text)
    differs: list[str] = []
    objective, sizes, engines = _objective(flat, differs), _sizes(flat, differs), _engines(flat, differs)
    config: dict[str, Json] = {
        "objective": objective,
        "engines": engines,
        "task": "add",
        "model": "tiny-moe",
        **sizes,
        "optimizer": _optimizer(flat),
        "schedule": _schedule(flat),
        "old_log_probs": "rollout" if get(flat, "algorithm.rollout_correction.bypass_mode") else "train",
        "steps": get(flat, "trainer.total_training_steps") or 100,
        "sampling": _sampling(flat),
        **_terms(flat),
    }
    differs += [
        "data and model of the YAML: replaced by task 'add' and model 'tiny-moe'",
        f"lr {get(flat, 'actor.optim.lr'):g}: replaced by {config['optimizer']['learning_rate']:g}",
    ]
    differs += [f"{key}: {value!r} has no counterpart" for key, value in _unread(flat)]
    return Nearest(config, differs)


READ_UNDER = ("algorithm.", "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.")
# Read or not, these change only speed and memory, or follow from others.
SILENT = (
    "megatron", "fsdp_config", "profiler", "checkpoint", "qat", "multi_turn", "agent",
    "trace", "prometheus", "val_kwargs", "_target_", "max_", "micro_batch", "gpu_memory", "parallel",
    "log_prob_", "use_dynamic_bsz", "token_len", "use_torch_compile", "lengths", "nnodes", "n_gpus",
)  # fmt: skip


def _objective(flat: Flat, differs: list[str]) -> dict[str, Json]:
    mode = get(flat, "actor.policy_loss.loss_mode")
    base = lookup(KNOWN_PRESETS, mode, "loss_mode")
    changes: dict[str, Json] = {"aggregation": get(flat, "actor.loss_agg_mode")}
    lookup(AGGREGATIONS, changes["aggregation"], "loss_agg_mode")
    changes |= _estimator(flat, differs)
    names = override_names(OBJECTIVES[base])
    changes |= {ours: get(flat, theirs) for ours, theirs in NUMBERS.items() if ours in names}
    if "anchor" in names:
        changes["anchor"] = "old"
    modifiers, more = _corrections(flat, differs)
    modifiers += ["opsm"] if mode.endswith("_opsm") else []
    # A setting that the plug-in shares with simlab's objectives has the same name there.
    shared = {
        "acrl_": "acrl" in modifiers,
        "opsm_": "opsm" in modifiers,
        "distortion_": base in ("gspo_bias", "gspo_noise"),
        "transform_": base == "dfpo_scale",
        "rebalance_": base == "dfpo_rebalance",
    }
    for name, text in variables(flat).items():
        if any(there and name.startswith(start) for start, there in shared.items()):
            more[name] = _number(name, text)
    return {"name": "+".join([base, *modifiers]), **changes, **more}


def _number(name: str, text: str) -> float | int:
    try:
        number = float(text)
    except ValueError as error:
        raise ValueError(f"the setting {name} is {text!r}; allowed: a number") from error
    return int(number) if number.is_integer() else number


def _estimator(flat: Flat, differs: list[str]) -> dict[str, Json]:
    estimator = get(flat, "algorithm.adv_estimator")
    if estimator == "grpo" and not get(flat, "algorithm.norm_adv_by_std_in_grpo"):
        return {"advantage": "grpo_no_std"}
    ours = {entry["algorithm.adv_estimator"]: name for name, entry in reversed(ESTIMATORS.items())}
    if estimator not in ours:
        differs.append(f"adv_estimator {estimator!r}: replaced by grpo")
    fields: dict[str, Json] = {"advantage": ours.get(estimator, "grpo")}
    if get(flat, "algorithm.filter_groups.enable"):
        fields["group_filter"] = True
        differs.append("filter_groups: simlab drops groups of equal rewards, verl samples others")
    return fields


def _corrections(flat: Flat, differs: list[str]) -> tuple[list[str], dict[str, Json]]:
    modifiers, changes = [], {}
    kind = get(flat, "algorithm.rollout_correction.rollout_is")
    threshold = get(flat, "algorithm.rollout_correction.rollout_is_threshold")
    if kind in ("token", "sequence"):
        low, _, high = str(threshold).rpartition("_")
        prefix = "" if kind == "token" else "seq_"
        modifiers.append(f"{prefix}{'mis' if low else 'tis'}")
        changes["correction_clip"] = [float(low), float(high)] if low not in ("", NEVER) else float(high)
    elif isinstance(kind, str) and kind.startswith("acrl_"):
        modifiers.append("acrl")
        changes["acrl_level"] = kind.removeprefix("acrl_")
        if not any(name.startswith("acrl_") for name in variables(flat)):
            differs.append("ACRL's gamma, C and X, environment variables there, are not in it: the defaults")
    elif kind is not None:
        differs.append(f"rollout_is {kind!r}: replaced by no correction")
    masks = _parts(flat, "algorithm.rollout_correction.rollout_rs")
    bounds = _parts(flat, "algorithm.rollout_correction.rollout_rs_threshold")
    for name in masks:
        if name in REJECTIONS:
            modifiers.append(REJECTIONS[name])
            changes["baseline"] = "all"
        else:
            differs.append(f"rollout_rs {name!r}: left out")
    if len(masks) == len(bounds) == 1 and masks[0] in REJECTIONS:
        numbers = [float(part) for part in bounds[0].split("_")]
        changes["rejection_bounds"] = numbers if len(numbers) > 1 else numbers[0]
    elif masks:
        differs.append(f"rollout_rs_threshold {','.join(bounds)}: replaced by simlab's defaults")
    return modifiers, changes


def _parts(flat: Flat, key: str) -> list[str]:
    value = get(flat, key)
    return [] if value is None else [part.strip() for part in str(value).split(",")]


def _engines(flat: Flat, differs: list[str]) -> Json:
    megatron = get(flat, "actor.strategy") == "megatron"
    where = "actor.megatron" if megatron else "actor.fsdp_config"
    dtypes = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16", "float32": "f32"}
    train, infer = (dtypes.get(get(flat, key), "bf16") for key in (f"{where}.dtype", "rollout.dtype"))
    router = get(flat, "actor.megatron.override_transformer_config.moe_router_dtype") if megatron else None
    if router == "fp32" and train == "bf16":
        train = "bf16-fp32router"
    elif router not in (None, "fp32"):
        differs.append(f"moe_router_dtype {router!r}: replaced by {train}")
    infer = "vllm-bf16" if infer == "bf16" else infer
    quantization, cache = get(flat, "rollout.quantization"), get(flat, KV_CACHE)
    if quantization == "fp8":
        infer = "fp8-e4m3"
    elif quantization is not None:
        differs.append(f"rollout.quantization {quantization!r}: replaced by {infer}")
    if cache.startswith("fp8") and infer == "vllm-bf16":
        infer = "bf16-fp8kv"
    elif cache != "auto":
        differs.append(f"{KV_CACHE} {cache!r}: replaced by {infer}")
    if get(flat, "rollout.full_determinism") and infer == "vllm-bf16":
        infer = "bf16-ordered"
    mode = get(flat, "actor.megatron.router_replay.mode")
    name = f"{train}/{infer}"
    return {"name": name, "replay": mode} if mode in ("R2", "R3") else name


def _schedule(flat: Flat) -> dict[str, Json]:
    settings = variables(flat)
    total = get(flat, "trainer.total_training_steps") or 0
    warmup_steps = get(flat, "actor.optim.lr_warmup_steps")
    if warmup_steps <= 0:
        warmup_steps = int(get(flat, "actor.optim.lr_warmup_steps_ratio") * total)
    more = {"lr_warmup_steps": warmup_steps} if warmup_steps else {}
    if "schedule" in settings:
        skipped = "mismatch_early" if settings["schedule"] == "length-triggered" else "early"
        numbers = {
            RENAMED.get(name, name): _number(name, text)
            for name, text in settings.items()
            if name in REACTING and name != skipped
        }
        return {"name": settings["schedule"], **numbers, **more}
    if get(flat, "actor.strategy") == "megatron":
        name = get(flat, "actor.optim.lr_decay_style")
        steps, min_lr_ratio = get(flat, "actor.optim.lr_decay_steps"), get(flat, "actor.optim.min_lr")
        min_lr_ratio = float(f"{min_lr_ratio / (get(flat, 'actor.optim.lr') or 1.0):.6g}")
    else:
        name, steps = get(flat, "actor.optim.lr_scheduler_type"), None
        min_lr_ratio = get(flat, "actor.optim.min_lr_ratio")
    if name in ("cosine", "linear"):
        return {"name": name, "steps": int(steps or total or 400), "min_lr_ratio": min_lr_ratio, **more}
    return {"name": "constant", **more}


def _sizes(flat: Flat, differs: list[str]) -> dict[str, Json]:
    batch, mini = int(get(flat, "data.train_batch_size")), int(get(flat, "actor.ppo_mini_batch_size"))
    prompts = max(1, batch // PROMPTS_PER_PROMPT)
    wanted = max(1, batch // max(1, mini))
    minibatches = max(count for count in range(1, wanted + 1) if prompts % count == 0)
    if minibatches != wanted:
        differs.append(f"{wanted} minibatches do not divide {prompts} prompts: {minibatches} stand for them")
    group = int(get(flat, "rollout.n"))
    if group < 2:
        differs.append("actor_rollout_ref.rollout.n is 1 or absent: GRPO needs at least 2 responses a prompt")
    return {"prompts_per_step": prompts, "group_size": group, "minibatches": minibatches}


def _optimizer(flat: Flat) -> dict[str, Json]:
    betas = get(flat, "actor.optim.betas")
    return {
        "learning_rate": float(f"{get(flat, 'actor.optim.lr') / LARGE_RATE * LAB_RATE:.6g}"),
        "beta1": float(betas[0]),
        "beta2": float(betas[1]),
        "weight_decay": get(flat, "actor.optim.weight_decay"),
        "max_grad_norm": get(flat, "actor.optim.clip_grad"),
    }


def _sampling(flat: Flat) -> dict[str, Json]:
    fields: dict[str, Json] = {"temperature": float(get(flat, "rollout.temperature"))}
    top_k, top_p = int(get(flat, "rollout.top_k")), float(get(flat, "rollout.top_p"))
    if top_k > 0:
        fields["top_k"] = top_k
    if top_p < 1:
        fields["top_p"] = top_p
    fields["processed"] = get(flat, "rollout.logprobs_mode") == "processed_logprobs"
    return fields


def _terms(flat: Flat) -> dict[str, Json]:
    terms: dict[str, Json] = {}
    if get(flat, "actor.entropy_coeff"):
        terms["entropy_coeff"] = float(get(flat, "actor.entropy_coeff"))
    if get(flat, "actor.use_kl_loss"):
        terms["kl_loss_coef"] = float(get(flat, "actor.kl_loss_coef"))
    return terms


def _unread(flat: Flat) -> Iterator[tuple[str, Json]]:
    """Return the keys that could matter, are set, and were not read."""
    read = {full_key(key) for key in DEFAULTS}
    for key, value in flat.items():
        matters = key.startswith(READ_UNDER) and not any(part in key for part in SILENT)
        if matters and key not in read and value not in (None, False, "", [], 0, -1):
            yield key, value


def to_toml(nearest: Nearest, name: str) -> str:
    """Return a file that `simlab sweep` reads, with the differences as comments."""
    lines = [f"# What differs from the YAML: {len(nearest.differences)} things"]
    lines += [f"#   {difference}" for difference in nearest.differences]
    lines += ["", f"name = {_toml(name)}", "", "[base]"]
    lines += [f"{key} = {_toml(value)}" for key, value in nearest.config.items()]
    return "\n".join([*lines, "", "[over]", "seed = [0, 1]"]) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"
    # TOML writes infinity as Python does, everything else here as JSON.
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
