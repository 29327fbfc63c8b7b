"""All metrics by name, in one dict per kind of input, and the names of verl."""

from collections.abc import Callable

import jax

from simlab.metrics import gradient_structure, mismatch, perplexity, pressure, probability_bins, weights

Metric = Callable[..., jax.Array]


def _name_metrics(*functions: Metric) -> dict[str, Metric]:
    return {function.__name__: function for function in functions}


# TokenBatch -> scalar.
SCALAR_METRICS: dict[str, Metric] = _name_metrics(
    mismatch.std_rho,
    mismatch.mean_rho,
    mismatch.max_rho,
    mismatch.min_rho,
    mismatch.max_rho_sequence,
    mismatch.min_rho_sequence,
    mismatch.rms_log_rho,
    mismatch.fraction_rho_above,
    mismatch.fraction_rho_below,
    mismatch.discrepancy,
    mismatch.discrepancy_per_token,
    mismatch.discrepancy_max,
    mismatch.discrepancy_std,
    mismatch.pcc,
    mismatch.k1_kl,
    mismatch.k3_kl,
    mismatch.chi2_token,
    mismatch.chi2_sequence,
    mismatch.ess_token,
    mismatch.ess_sequence,
    perplexity.abs_seq_log_ratio,
    perplexity.log_ppl_abs_diff,
    perplexity.log_ppl_diff,
    perplexity.log_ppl_diff_max,
    perplexity.log_ppl_diff_min,
    perplexity.ppl_ratio,
    perplexity.training_log_ppl,
    perplexity.rollout_log_ppl,
    perplexity.training_ppl,
    perplexity.rollout_ppl,
)

# TokenBatch -> [K], by probability bin.
BINNED_METRICS: dict[str, Metric] = _name_metrics(
    probability_bins.tokens_by_pi_train,
    probability_bins.mean_rho_by_pi_train,
    probability_bins.mean_rho_by_pi_infer,
    probability_bins.rms_log_rho_by_pi_train,
)
METRICS: dict[str, Metric] = SCALAR_METRICS | BINNED_METRICS

# (objective, TokenBatch) -> scalar.
OBJECTIVE_METRICS: dict[str, Metric] = _name_metrics(
    pressure.clip_fraction,
    pressure.clip_fraction_positive,
    pressure.clip_fraction_negative,
    pressure.rejected_token_fraction,
    pressure.rejected_sequence_fraction,
    pressure.delta_clip_j,
    pressure.hacking_j,
    pressure.asym,
)

# (weights [B, T], mask [B, T]) -> scalar.
WEIGHT_METRICS: dict[str, Metric] = _name_metrics(
    weights.weight_mean,
    weights.weight_std,
    weights.weight_max,
    weights.weight_min,
    weights.effective_sample_size,
    weights.weight_sequence_mean,
    weights.weight_sequence_std,
    weights.weight_sequence_max,
    weights.weight_sequence_min,
    weights.weight_sequence_max_deviation,
)

# Curves or histograms over the steps of a run -> scalar or curve.
CURVE_METRICS: dict[str, Metric] = _name_metrics(
    gradient_structure.jitter2, probability_bins.controlled_rms_log_rho
)

# verl's name -> the name in one of the dicts above. verl's `rollout_is_*` are about the weights that it
# applied (`Truncated`, `Masked`); with `rollout_is=sequence`, its max and min are `max_rho_sequence`,
# `min_rho_sequence`.
VERL_ALIASES: dict[str, str] = {
    "rollout_corr/kl": "k1_kl",
    "rollout_corr/k3_kl": "k3_kl",
    "rollout_corr/chi2_token": "chi2_token",
    "rollout_corr/chi2_seq": "chi2_sequence",
    "rollout_corr/training_ppl": "training_ppl",
    "rollout_corr/rollout_ppl": "rollout_ppl",
    "rollout_corr/training_log_ppl": "training_log_ppl",
    "rollout_corr/rollout_log_ppl": "rollout_log_ppl",
    "rollout_corr/log_ppl_diff": "log_ppl_diff",
    "rollout_corr/log_ppl_abs_diff": "log_ppl_abs_diff",
    "rollout_corr/log_ppl_diff_max": "log_ppl_diff_max",
    "rollout_corr/log_ppl_diff_min": "log_ppl_diff_min",
    "rollout_corr/ppl_ratio": "ppl_ratio",
    "training/rollout_probs_diff_mean": "discrepancy_per_token",
    "training/rollout_probs_diff_max": "discrepancy_max",
    "training/rollout_probs_diff_std": "discrepancy_std",
    "training/rollout_actor_probs_pearson_corr": "pcc",
    "rollout_corr/rollout_is_mean": "weight_mean",
    "rollout_corr/rollout_is_std": "weight_std",
    "rollout_corr/rollout_is_max": "weight_max",
    "rollout_corr/rollout_is_min": "weight_min",
    "rollout_corr/rollout_is_eff_sample_size": "effective_sample_size",
    "rollout_corr/rollout_is_seq_mean": "weight_sequence_mean",
    "rollout_corr/rollout_is_seq_std": "weight_sequence_std",
    "rollout_corr/rollout_is_seq_max": "weight_sequence_max",
    "rollout_corr/rollout_is_seq_min": "weight_sequence_min",
    "rollout_corr/rollout_is_seq_max_deviation": "weight_sequence_max_deviation",
    "rollout_corr/rollout_is_ratio_fraction_high": "fraction_rho_above",
    "rollout_corr/rollout_is_ratio_fraction_low": "fraction_rho_below",
    "rollout_corr/rollout_rs_masked_fraction": "rejected_token_fraction",
    "rollout_corr/rollout_rs_seq_masked_fraction": "rejected_sequence_fraction",
    "actor/pg_clipfrac": "clip_fraction",
}
