"""Names of averages per step in each framework, with the column of each."""

# A level is a mean of abs(log rho), or comes from a KL: sqrt(2 k3), sqrt(2 k1).
CURVES: dict[str, str] = {
    "sampling/sampling_logp_difference/mean": "mean_abs_log_rho",
    "train/train_rollout_logprob_abs_diff": "mean_abs_log_rho",
    "train_rollout_logprob_abs_diff": "mean_abs_log_rho",
    "policy/rollout_train_logprobs_abs_diff_mean": "mean_abs_log_rho",
    "train/token_mult_prob_error": "mean_exp_abs_log_rho",
    "token_mult_prob_error": "mean_exp_abs_log_rho",
    "rollout_corr/k3_kl": "k3_kl",
    "train/gen_kl_error": "k3_kl",
    "gen_kl_error": "k3_kl",
    "mismatch_kl/all/mean": "k3_kl",
    "train/train_rollout_kl": "k3_kl",
    "rollout_corr/kl": "k1_kl",
    "train/vllm_kl": "k1_kl",
    "vllm_kl": "k1_kl",
    "sampling/sampling_logp_difference/max": "max_abs_log_rho",
    "sampling/importance_sampling_ratio/mean": "mean_weight",
    "sampling/importance_sampling_ratio/min": "min_weight",
    "sampling/importance_sampling_ratio/max": "max_weight",
    "rollout_corr/rollout_is_mean": "mean_weight",
    "completions/mean_length": "response_length",
    "response_length/mean": "response_length",
    "reward": "reward",
    "critic/score/mean": "reward",
    "entropy": "entropy",
    "actor/entropy": "entropy",
}
LEVELS = ("mean_abs_log_rho", "mean_exp_abs_log_rho", "k3_kl", "k1_kl")
STEPS = ("step", "Step", "_step", "global_step", "training/global_step", "train/global_step")


def find_curve(name: str) -> str | None:
    """Return the column of a curve; W&B's export puts the run's name before ` - `."""
    return CURVES.get(name) or CURVES.get(name.rsplit(" - ", 1)[-1])


def has_level(text: str) -> bool:
    """Return whether a text contains the name of a mismatch curve as a JSON key."""
    return any(f'"{name}"' in text for name, column in CURVES.items() if column in LEVELS)
