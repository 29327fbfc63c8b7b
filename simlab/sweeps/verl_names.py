"""Field names of verl, vLLM and other trainers, with their simlab names; errors suggest the simlab field."""

VERL_NAMES = {
    "lr": "learning_rate",
    "n": "group_size",
    "num_generations": "group_size",
    "batch_size": "prompts_per_step",
    "train_batch_size": "prompts_per_step",
    "mini_batch_size": "minibatches",
    "ppo_mini_batch_size": "minibatches",
    "total_training_steps": "steps",
    "max_steps": "steps",
    "max_response_length": "response_length",
    "clip_grad": "optimizer.max_grad_norm",
    "lr_scheduler_type": "schedule",
    "adv_estimator": "objective.advantage",
    "loss_agg_mode": "objective.aggregation",
    "loss_mode": "objective",
    "clip_ratio_low": "clip_low",
    "clip_ratio_high": "clip_high",
    "clip_ratio_c": "objective.dual_clip",
    "rollout_is_threshold": "objective.correction_clip",
    "bypass_mode": "old_log_probs",
    "width": "model.hidden_size",
    "num_layers": "model.num_hidden_layers",
    "max_tokens": "response_length",
    "enable_gradient_checkpointing": "gradient_checkpointing",
}
"""From a name, without the path before it, to the field; `minibatches` counts them and is not their size."""
SEVERAL: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("clip", "clip_ratio", "cliprange"), ("clip_low", "clip_high")
)
"""Names of which each stands for several fields."""


def find_fields(name: str) -> tuple[str, ...]:
    """Return the fields that `name`, without the path before it, stands for; () if there are none."""
    return (VERL_NAMES[name],) if name in VERL_NAMES else SEVERAL.get(name, ())
