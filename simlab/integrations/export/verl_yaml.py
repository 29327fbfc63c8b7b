"""Read a verl config in YAML as flat keys, with verl's defaults for missing keys."""

from collections.abc import Mapping
from typing import Any

from simlab.core.json_value import Json
from simlab.integrations.verl.settings import PREFIX
from simlab.sweeps.column_names import flatten

LONGEST = 2**22
Flat = Mapping[str, Json]
VARIABLES = "ray_kwargs.ray_init.runtime_env.env_vars."


def flat_config(text: str) -> dict[str, Json]:
    """Return the values of a YAML by dotted keys, without interpolations.

    Raises `ValueError` for text that is not YAML of a mapping, `ImportError` with the install command.
    """
    if len(text) > LONGEST:
        raise ValueError(f"{len(text):,} characters; a verl config has at most {LONGEST:,}")
    try:
        import yaml
    except ImportError as error:
        raise ImportError("reading YAML needs PyYAML: pip install pyyaml") from error
    try:
        # An alias may make a small text large: verl's configs have none.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise ValueError("the YAML has aliases, which a verl config does not")
        table = yaml.load(text, yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ValueError(f"invalid YAML{where}: {reason}") from error
    if not isinstance(table, Mapping):
        raise ValueError("the YAML is not a mapping; paste a verl config, such as Hydra's .hydra/config.yaml")
    return {key: value for key, value in flatten(table) if not str(value).startswith("${")}


# Key below `actor_rollout_ref` or at the top -> verl's default; what is not here is not read.
DEFAULTS: dict[str, Json] = {
    "actor.policy_loss.loss_mode": "vanilla",
    "actor.loss_agg_mode": "token-mean",
    "actor.clip_ratio_low": 0.2,
    "actor.clip_ratio_high": 0.2,
    "actor.clip_ratio_c": 3.0,
    "actor.tau_pos": 1.0,
    "actor.tau_neg": 1.05,
    "actor.policy_loss.dro_beta": 0.1,
    "actor.policy_loss.clip_cov_ratio": 2e-4,
    "actor.policy_loss.clip_cov_lb": 1.0,
    "actor.policy_loss.clip_cov_ub": 5.0,
    "actor.policy_loss.kl_cov_ratio": 2e-4,
    "actor.policy_loss.ppo_kl_coef": 0.1,
    "actor.entropy_coeff": 0.0,
    "actor.use_kl_loss": False,
    "actor.kl_loss_coef": 0.001,
    "actor.ppo_mini_batch_size": 256,
    "actor.optim.lr": 1e-6,
    "actor.optim.betas": [0.9, 0.999],
    "actor.optim.weight_decay": 0.01,
    "actor.optim.clip_grad": 1.0,
    "actor.optim.lr_warmup_steps": -1,
    "actor.optim.lr_warmup_steps_ratio": 0.0,
    "actor.optim.lr_scheduler_type": "constant",
    "actor.optim.min_lr_ratio": 0.0,
    "actor.optim.lr_decay_style": "constant",
    "actor.optim.lr_decay_steps": None,
    "actor.optim.min_lr": 0.0,
    "actor.strategy": "fsdp",
    "actor.fsdp_config.dtype": "bfloat16",
    "actor.megatron.dtype": "bfloat16",
    "actor.megatron.router_replay.mode": "disabled",
    "actor.megatron.override_transformer_config.moe_router_dtype": None,
    "rollout.dtype": "bfloat16",
    "rollout.quantization": None,
    "rollout.full_determinism": False,
    "rollout.engine_kwargs.vllm.kv_cache_dtype": "auto",
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
    "trainer.total_training_steps": None,
}


def full_key(key: str) -> str:
    """Return the full path of a key of `DEFAULTS`."""
    return key if key.startswith(("algorithm.", "data.", "trainer.")) else f"actor_rollout_ref.{key}"


def get(flat: Flat, key: str) -> Json:
    """Return the value at a key of `DEFAULTS`, or verl's default; raise `ValueError` for a wrong type."""
    value, default = flat.get(full_key(key)), DEFAULTS[key]
    if value is None:
        return default
    try:
        return _as(type(default), value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{full_key(key)}: {value!r}; verl has {default!r} there") from error


def _as(kind: type, value: Any) -> Any:
    if kind is float:
        # YAML 1.1 reads 1e-6 as text; "0.5_5" is two bounds.
        return value if isinstance(value, str) and "_" in value else float(value)
    if kind is int:
        return int(value)
    if kind is list:
        return [float(number) for number in value]
    if kind is bool and not isinstance(value, bool):
        raise TypeError(value)
    return str(value) if kind is str else value


def variables(flat: Flat) -> dict[str, str]:
    """Return the plug-in's settings in the YAML, by the names of its `Settings`."""
    start = VARIABLES + PREFIX
    return {
        key.removeprefix(start).lower(): str(value) for key, value in flat.items() if key.startswith(start)
    }
