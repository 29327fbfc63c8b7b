"""The way back: from a verl YAML to the nearest run of the lab, and what differs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from simlab.core.catalog import lookup
from simlab.harness.export.objective import ESTIMATORS, LOSS_MODES, NEVER, WITH_ACRL
from simlab.harness.export.verl_run import LAB_RATE, LARGE_RATE, PROMPTS_PER_PROMPT
from simlab.objectives import AGGREGATIONS

LONGEST = 2**22
Flat = Mapping[str, Any]

# What decides nothing here: machines, data, logging.
OF_THE_MACHINE = (
    "data.", "trainer.", "ray_kwargs.", "reward", "critic.", "global_profiler.", "transfer_queue.",
    "distillation.", "hydra.", "defaults",
)  # fmt: skip
KNOWN_PRESETS = {
    "vanilla": "grpo",
    "gpg": "grpo",
    **{mode: preset for preset, mode in LOSS_MODES.items() if mode != "vanilla"},
    "simlab_grpo": "grpo",
    **{acrl: {"vanilla": "grpo", "gspo": "gspo"}[mode] for mode, acrl in WITH_ACRL.items()},
}
REJECTIONS = {"seq_mean_k1": "geo_mask", "seq_mean_k3": "k3_mask"}


@dataclass(frozen=True)
class Nearest:
    """A run in the lab's plain values, and what is not as in the YAML."""

    config: dict[str, Any]
    differences: list[str]


def nearest_config(text: str) -> Nearest:
    """Return the run of the lab that is nearest to a verl config in YAML.

    Keys that are missing have verl's defaults. Raises `ValueError` for text that is no YAML of a mapping,
    and `ImportError` saying what to install without PyYAML.
    """
    flat = dict(_flat(_parsed(text)))
    found, differs = _objective(flat)
    engines, apart = _engines(flat)
    config: dict[str, Any] = {"objective": found, "engines": engines, "task": "add", "model": "tiny-moe"}
    config |= _sizes(flat, differs)
    config["optimizer"] = _optimizer(flat)
    sampler = _sampler(flat)
    if sampler:
        config["sampler"] = sampler
    terms = _terms(flat)
    if terms:
        config["extra_terms"] = terms
    differs += apart
    differs += [
        "task 'add' and model 'tiny-moe' stand for the data and the model of the YAML",
        f"learning rate {config['optimizer']['learning_rate']:g} stands for {_get(flat, 'actor.optim.lr'):g}",
    ]
    differs += [f"{key}: {value!r} has no counterpart" for key, value in _unread(flat)]
    return Nearest(config, differs)


def _parsed(text: str) -> Mapping[str, Any]:
    if len(text) > LONGEST:
        raise ValueError(f"{len(text):,} characters; a verl config has at most {LONGEST:,}")
    try:
        import yaml
    except ImportError as error:
        raise ImportError("reading YAML needs PyYAML: pip install 'simlab[verl]'") from error
    try:
        # An alias may make a small text large: verl's configs have none.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise ValueError("the YAML has aliases, which a verl config does not")
        table = yaml.load(text, yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"no YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(table, Mapping):
        raise ValueError("the YAML is no mapping; paste a verl config, such as Hydra's .hydra/config.yaml")
    return table


def _flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        here = f"{above}{name}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{here}.")
        elif not (isinstance(value, str) and value.startswith("${")):
            yield here, value


# Key below `actor_rollout_ref` or at the top -> verl's default; what is not here is not read.
DEFAULTS: dict[str, Any] = {
    "actor.policy_loss.loss_mode": "vanilla",
    "actor.loss_agg_mode": "token-mean",
    "actor.clip_ratio_low": 0.2,
    "actor.clip_ratio_high": 0.2,
    "actor.clip_ratio_c": 3.0,
    "actor.tau_pos": 1.0,
    "actor.tau_neg": 1.05,
    "actor.entropy_coeff": 0.0,
    "actor.use_kl_loss": False,
    "actor.kl_loss_coef": 0.001,
    "actor.ppo_mini_batch_size": 256,
    "actor.optim.lr": 1e-6,
    "actor.optim.betas": [0.9, 0.999],
    "actor.optim.weight_decay": 0.01,
    "actor.optim.clip_grad": 1.0,
    "actor.strategy": "fsdp",
    "actor.fsdp_config.dtype": "bfloat16",
    "actor.megatron.dtype": "bfloat16",
    "actor.megatron.router_replay.mode": "disabled",
    "rollout.dtype": "bfloat16",
    "rollout.quantization": None,
    "rollout.temperature": 1.0,
    "rollout.top_k": -1,
    "rollout.top_p": 1.0,
    "rollout.logprobs_mode": "processed_logprobs",
    "rollout.n": 1,
    "rollout.enable_rollout_routing_replay": False,
    "algorithm.adv_estimator": "gae",
    "algorithm.norm_adv_by_std_in_grpo": True,
    "algorithm.filter_groups.enable": False,
    "algorithm.rollout_correction.rollout_is": None,
    "algorithm.rollout_correction.rollout_is_threshold": 2.0,
    "algorithm.rollout_correction.rollout_rs": None,
    "algorithm.rollout_correction.rollout_rs_threshold": None,
    "algorithm.rollout_correction.bypass_mode": False,
    "data.train_batch_size": 1024,
}
READ_UNDER = ("algorithm.", "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.")
# Read or not, these change only speed and memory, or follow from others.
SILENT = (
    "megatron", "fsdp_config", "profiler", "checkpoint", "engine_kwargs", "qat", "multi_turn", "agent",
    "trace", "prometheus", "val_kwargs", "_target_", "max_", "micro_batch", "gpu_memory", "parallel",
    "log_prob_", "use_dynamic_bsz", "token_len", "use_torch_compile", "lengths", "nnodes", "n_gpus",
)  # fmt: skip


def _full(key: str) -> str:
    return key if key.startswith(("algorithm.", "data.")) else f"actor_rollout_ref.{key}"


def _get(flat: Flat, key: str) -> Any:
    value = flat.get(_full(key), DEFAULTS[key])
    default = DEFAULTS[key]
    if isinstance(default, float) and isinstance(value, str) and "_" not in value:
        # YAML 1.1 reads 1e-6 as text.
        return float(value)
    return value


def _objective(flat: Flat) -> tuple[Any, list[str]]:
    differs: list[str] = []
    mode = _get(flat, "actor.policy_loss.loss_mode")
    if mode not in KNOWN_PRESETS:
        differs.append(f"loss_mode {mode!r} is not in the lab: grpo stands for it")
    base = KNOWN_PRESETS.get(mode, "grpo")
    changes: dict[str, Any] = {"aggregation": _get(flat, "actor.loss_agg_mode")}
    lookup(AGGREGATIONS, changes["aggregation"], "loss_agg_mode")
    changes |= _estimator(flat, differs)
    if base in ("grpo", "gspo", "gmpo", "cispo") or base.startswith(("dfpo", "gspo_")):
        changes |= {"clip_low": _get(flat, "actor.clip_ratio_low")}
    if base != "sapo":
        changes["clip_high"] = _get(flat, "actor.clip_ratio_high")
    else:
        changes |= {
            "sapo_tau_positive": _get(flat, "actor.tau_pos"),
            "sapo_tau_negative": _get(flat, "actor.tau_neg"),
        }
    if base == "grpo":
        changes["dual_clip"] = _get(flat, "actor.clip_ratio_c")
    suffixes, more = _corrections(flat, differs)
    return {"name": "+".join([base, *suffixes]), **changes, **more}, differs


def _estimator(flat: Flat, differs: list[str]) -> dict[str, Any]:
    estimator = _get(flat, "algorithm.adv_estimator")
    if estimator == "grpo" and not _get(flat, "algorithm.norm_adv_by_std_in_grpo"):
        return {"advantage": "grpo_no_std"}
    ours = {entry["algorithm.adv_estimator"]: name for name, entry in reversed(ESTIMATORS.items())}
    if estimator not in ours:
        differs.append(f"adv_estimator {estimator!r}: grpo stands for it")
    found: dict[str, Any] = {"advantage": ours.get(estimator, "grpo")}
    if _get(flat, "algorithm.filter_groups.enable"):
        found["group_filter"] = True
        differs.append("filter_groups: the lab drops groups of equal rewards, verl samples others")
    return found


def _corrections(flat: Flat, differs: list[str]) -> tuple[list[str], dict[str, Any]]:
    suffixes, changes = [], {}
    kind = _get(flat, "algorithm.rollout_correction.rollout_is")
    threshold = _get(flat, "algorithm.rollout_correction.rollout_is_threshold")
    if kind in ("token", "sequence"):
        low, _, high = str(threshold).rpartition("_")
        prefix = "" if kind == "token" else "seq_"
        suffixes.append(f"{prefix}{'mis' if low else 'tis'}")
        changes["correction_clip"] = [float(low), float(high)] if low not in ("", NEVER) else float(high)
    elif isinstance(kind, str) and kind.startswith("acrl_"):
        suffixes.append("acrl")
        changes["acrl_level"] = kind.removeprefix("acrl_")
        differs.append("ACRL's gamma, C and X are environment variables there: the lab's defaults here")
    elif kind is not None:
        differs.append(f"rollout_is {kind!r}: no correction stands for it")
    masks = _parts(flat, "algorithm.rollout_correction.rollout_rs")
    bounds = _parts(flat, "algorithm.rollout_correction.rollout_rs_threshold")
    for name in masks:
        if name in REJECTIONS:
            suffixes.append(REJECTIONS[name])
            changes["baseline"] = "all"
        else:
            differs.append(f"rollout_rs {name!r}: left out")
    if len(masks) == len(bounds) == 1 and masks[0] in REJECTIONS:
        numbers = [float(part) for part in bounds[0].split("_")]
        changes["rejection_bounds"] = numbers if len(numbers) > 1 else numbers[0]
    elif masks:
        differs.append(f"rollout_rs_threshold {','.join(bounds)}: the lab's defaults stand for it")
    return suffixes, changes


def _parts(flat: Flat, key: str) -> list[str]:
    value = _get(flat, key)
    return [] if value is None else [part.strip() for part in str(value).split(",")]


def _engines(flat: Flat) -> tuple[Any, list[str]]:
    differs = []
    strategy = _get(flat, "actor.strategy")
    where = "actor.megatron" if strategy == "megatron" else "actor.fsdp_config"
    dtypes = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16", "float32": "f32"}
    train = dtypes.get(str(_get(flat, f"{where}.dtype")), "bf16")
    infer = dtypes.get(str(_get(flat, "rollout.dtype")), "bf16")
    infer = "vllm-bf16" if infer == "bf16" else infer
    quantization = _get(flat, "rollout.quantization")
    if quantization == "fp8":
        infer = "fp8-e4m3"
    elif quantization is not None:
        differs.append(f"rollout.quantization {quantization!r}: {infer} stands for it")
    mode = _get(flat, "actor.megatron.router_replay.mode")
    name = f"{train}/{infer}"
    return ({"name": name, "replay": mode} if mode in ("R2", "R3") else name), differs


def _sizes(flat: Flat, differs: list[str]) -> dict[str, Any]:
    batch, mini = int(_get(flat, "data.train_batch_size")), int(_get(flat, "actor.ppo_mini_batch_size"))
    prompts = max(1, batch // PROMPTS_PER_PROMPT)
    wanted = max(1, batch // max(1, mini))
    minibatches = max(count for count in range(1, wanted + 1) if prompts % count == 0)
    if minibatches != wanted:
        differs.append(f"{wanted} minibatches do not divide {prompts} prompts: {minibatches} stand for them")
    group = int(_get(flat, "rollout.n"))
    return {"prompts": prompts, "group_size": group, "minibatches": minibatches}


def _optimizer(flat: Flat) -> dict[str, Any]:
    betas = _get(flat, "actor.optim.betas")
    return {
        "learning_rate": float(f"{_get(flat, 'actor.optim.lr') / LARGE_RATE * LAB_RATE:.6g}"),
        "beta1": float(betas[0]),
        "beta2": float(betas[1]),
        "weight_decay": _get(flat, "actor.optim.weight_decay"),
        "max_grad_norm": _get(flat, "actor.optim.clip_grad"),
    }


def _sampler(flat: Flat) -> dict[str, Any]:
    found: dict[str, Any] = {"temperature": float(_get(flat, "rollout.temperature"))}
    top_k, top_p = int(_get(flat, "rollout.top_k")), float(_get(flat, "rollout.top_p"))
    if top_k > 0:
        found["top_k"] = top_k
    if top_p < 1:
        found["top_p"] = top_p
    found["processed"] = _get(flat, "rollout.logprobs_mode") == "processed_logprobs"
    return found


def _terms(flat: Flat) -> dict[str, float]:
    terms = {}
    if _get(flat, "actor.entropy_coeff"):
        terms["entropy"] = float(_get(flat, "actor.entropy_coeff"))
    if _get(flat, "actor.use_kl_loss"):
        terms["kl"] = float(_get(flat, "actor.kl_loss_coef"))
    return terms


def _unread(flat: Flat) -> Iterator[tuple[str, Any]]:
    """Keys that could matter, are set, and were not looked at."""
    read = {_full(key) for key in DEFAULTS}
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
    return "\n".join([*lines, "steps = 100", "", "[over]", "seed = [0, 1]"]) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return repr(value)
