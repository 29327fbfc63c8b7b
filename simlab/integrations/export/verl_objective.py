"""An objective of the lab as verl's loss mode, estimator, rollout correction, and the plug-in's settings."""

import math
from typing import TYPE_CHECKING, Any

from simlab.core.json_value import Json
from simlab.integrations.export.verl_yaml import full_key
from simlab.integrations.verl.settings import PREFIX
from simlab.objectives import ADVANTAGES, AGGREGATIONS, Objective
from simlab.objectives.corrections import Acrl, KpopWeights, Masked, Truncated, Vaco, as_bounds
from simlab.objectives.corrections import geometric_log_rho as geometric
from simlab.objectives.corrections import sequence_log_rho as sequence
from simlab.objectives.corrections import token_log_rho as token
from simlab.objectives.distortions import GaussianNoise, LowProbabilityDelta
from simlab.objectives.divergences import old_logp, rollout_logp
from simlab.objectives.rejection import (
    DivergenceCap,
    KpopMask,
    ProbabilityDifference,
    RatioBand,
    SecondMomentMask,
)
from simlab.objectives.rejection import token as each_token

if TYPE_CHECKING:
    from simlab.integrations.export.verl_run import Draft

ACTOR, CORRECTION = "actor_rollout_ref.actor", "algorithm.rollout_correction"

# The surrogate of a preset -> verl's loss mode. `simlab_` ones are the plug-in's.
LOSS_MODES = {
    **dict.fromkeys(("grpo", "ppo", "rloo", "dr_grpo", "dapo"), "vanilla"),
    "reinforce": "gpg",
    "gspo": "gspo",
    "gmpo": "geo_mean",
    "cispo": "cispo",
    "sapo": "sapo",
    "gpg": "gpg",
    "dppo_tv": "dppo_tv",
    "dppo_kl": "dppo_kl",
    "dro": "dro",
    "clip_cov": "clip_cov",
    "kl_cov": "kl_cov",
    # verl's gspo ignores the aggregation.
    "luspo": "simlab_gspo",
    "ipo": "simlab_ipo",
    "kpop": "simlab_kpop",
    "drpo": "simlab_drpo",
    "vespo": "simlab_vespo",
    "m2po": "simlab_m2po",
    "grpo_fix": "simlab_grpo_fix",
    "grpo_fix_weight": "simlab_grpo_fix_weight",
    "gspo_bias": "simlab_gspo_bias",
    "gspo_noise": "simlab_gspo_noise",
    "dfpo_none": "simlab_dfpo_none",
    "dfpo_min": "simlab_dfpo_min",
    "dfpo_orth": "simlab_dfpo_orth",
    "dfpo_posorth": "simlab_dfpo_posorth",
    "dfpo_rebalance": "simlab_dfpo_rebalance",
    "dfpo_min_no_stop": "simlab_dfpo_min_no_stop",
    "dfpo_scale": "simlab_dfpo_scale",
}
# Losses of the plug-in that read the rollout from verl's token weights, which then weigh nothing.
AROUND_ROLLOUT = {
    name: f"simlab_{name}" for name in ("dppo_tv", "dppo_kl", "ipo", "kpop", "drpo", "vespo", "m2po")
}
WITH_ROLLOUT_KL = {
    mode: f"{mode}_rollout_kl" for mode in (*AROUND_ROLLOUT.values(), "simlab_grpo", "simlab_gspo")
}
WITH_OPSM = {"vanilla": "simlab_grpo_opsm", "gspo": "simlab_gspo_opsm"}
WITH_ACRL = {"vanilla": "simlab_grpo_acrl", "gspo": "simlab_gspo_acrl"}
WITH_VACO = {"vanilla": "simlab_grpo_vaco", "gspo": "simlab_gspo_vaco"}
ESTIMATORS: dict[str, dict[str, Json]] = {
    "grpo": {"algorithm.adv_estimator": "grpo"},
    "grpo_no_std": {"algorithm.adv_estimator": "grpo", "algorithm.norm_adv_by_std_in_grpo": False},
    "rloo": {"algorithm.adv_estimator": "rloo"},
    "reward": {"algorithm.adv_estimator": "simlab_reward"},
    "gpg": {"algorithm.adv_estimator": "gpg"},
    "otb": {
        "algorithm.adv_estimator": "optimal_token_baseline",
        f"{ACTOR}.calculate_sum_pi_squared": True,
    },
    "otb_full_tail": {
        "algorithm.adv_estimator": "optimal_token_baseline",
        f"{ACTOR}.calculate_sum_pi_squared": True,
    },
    "whitened": {"algorithm.adv_estimator": "reinforce_plus_plus"},
}
LEVELS: dict[object, str] = {token: "token", sequence: "sequence", geometric: "geometric"}
# verl has no switch for the dual clip; beyond exp(20) it never acts.
NO_DUAL_CLIP = 1e10
# A lower bound that never acts, since ratios are at least exp(-20).
NEVER = "1e-30"


def map_objective(draft: "Draft", objective: Objective, name: str) -> None:
    """Write the overrides of an objective into `draft`; `name` is the preset with its suffixes."""
    base = name.split("+")[0]
    mode = LOSS_MODES.get(base)
    if mode is None:
        draft.rejected.append(f"objective {base!r} (verl has no estimator for it)")
        return
    draft.overrides |= {f"{ACTOR}.loss_agg_mode": _key(AGGREGATIONS, objective.aggregation)}
    _estimator(draft, objective)
    _surrogate(draft, objective.surrogate)
    anchor = getattr(objective.surrogate, "anchor", rollout_logp if base == "m2po" else old_logp)
    if anchor is not old_logp:
        mode = AROUND_ROLLOUT[base]
        _around_rollout(draft, objective)
    elif not objective.regularizers:
        mode = _correction(draft, objective.correction, mode)
    for regularizer in objective.regularizers:
        mode = _rollout_kl(draft, objective, mode, regularizer)
    _rejections(draft, objective)
    if objective.centering is not None:
        draft.rejected.append("objective modifier 'score_centering' (verl's losses see one token of V)")
    _distortion(draft, objective.distortion)
    if objective.transform is not None:
        _groups_together(draft, objective.transform)
    if objective.staleness is not None:
        mode = _off_policy_mask(draft, objective.staleness.opsm_delta, mode)
    draft.overrides[f"{ACTOR}.policy_loss.loss_mode"] = mode


def _key(catalog: Any, value: Any) -> str:
    return next(name for name, entry in catalog.items() if entry is value)


def _estimator(draft: "Draft", objective: Objective) -> None:
    estimator = next((name for name, entry in ADVANTAGES.items() if entry == objective.advantage), "")
    if estimator in ESTIMATORS:
        draft.overrides |= ESTIMATORS[estimator]
        if estimator == "otb_full_tail":
            draft.environment[f"{PREFIX}OTB_ZERO_TAIL"] = "0"
    else:
        draft.rejected.append(f"objective.advantage {estimator or 'of your own'!r}")
    if objective.group_filter:
        draft.overrides["algorithm.filter_groups.enable"] = True
        draft.notes.append("groups of equal rewards are sampled again (filter_groups), not dropped")


# A number of a surrogate or its clip -> verl's setting.
NUMBERS = {
    "clip_low": "actor.clip_ratio_low",
    "clip_high": "actor.clip_ratio_high",
    "dual_clip": "actor.clip_ratio_c",
    "sapo_tau_positive": "actor.tau_pos",
    "sapo_tau_negative": "actor.tau_neg",
    "divergence_low": "actor.clip_ratio_low",
    "divergence_high": "actor.clip_ratio_high",
    "ratio_cap": "actor.clip_ratio_c",
    "dro_beta": "actor.policy_loss.dro_beta",
    "cov_ratio": "actor.policy_loss.clip_cov_ratio",
    "cov_low": "actor.policy_loss.clip_cov_lb",
    "cov_high": "actor.policy_loss.clip_cov_ub",
    "kl_cov_ratio": "actor.policy_loss.kl_cov_ratio",
    "kl_cov_coefficient": "actor.policy_loss.ppo_kl_coef",
}

# Numbers of a surrogate that verl's config has no field for: settings of the plug-in.
SETTINGS = (
    "divergence_bound",
    "kpop_bound",
    "drpo_delta",
    "vespo_k_positive",
    "vespo_lambda_positive",
    "vespo_k_negative",
    "vespo_lambda_negative",
    "m2_threshold",
)


def _surrogate(draft: "Draft", surrogate: Any) -> None:
    holder = getattr(surrogate, "clip", surrogate)
    for ours, theirs in NUMBERS.items():
        if hasattr(holder, ours):
            value = getattr(holder, ours)
            infinite = ours == "dual_clip" and math.isinf(value)
            draft.overrides[full_key(theirs)] = NO_DUAL_CLIP if infinite else value
    for name in SETTINGS:
        if hasattr(surrogate, name):
            draft.environment[f"{PREFIX}{name.upper()}"] = f"{getattr(surrogate, name):g}"
    if getattr(surrogate, "divergence_top_k", None) is not None:
        draft.rejected.append("objective.divergence_top_k (verl's losses see the sampled token alone)")


def _around_rollout(draft: "Draft", objective: Objective) -> None:
    """Write the token weights rho, from which the plug-in's losses compute the rollout's log-probs."""
    if objective.correction is not None:
        draft.rejected.append("objective.anchor 'rollout' with a correction (both take rollout_is_weights)")
    _token_weights(draft)


def _token_weights(draft: "Draft") -> None:
    draft.overrides[f"{CORRECTION}.rollout_is"] = "token"
    draft.overrides[f"{CORRECTION}.rollout_is_threshold"] = NO_DUAL_CLIP


def _rollout_kl(draft: "Draft", objective: Objective, mode: str, term: Any) -> str:
    """Write the rollout KL; return the loss mode that has it."""
    mode = {"vanilla": "simlab_grpo", "gspo": "simlab_gspo"}.get(mode, mode)
    if mode not in WITH_ROLLOUT_KL or getattr(objective.surrogate, "anchor", None) is old_logp:
        draft.rejected.append(
            f"objective modifier 'rollout_kl' on loss mode {mode!r} (grpo, gspo and anchor 'rollout' have it)"
        )
        return mode
    _around_rollout(draft, objective)
    draft.environment[f"{PREFIX}ROLLOUT_KL_COEFFICIENT"] = f"{term.rollout_kl_coefficient:g}"
    return WITH_ROLLOUT_KL[mode]


def _correction(draft: "Draft", correction: Any, mode: str) -> str:
    """Write a correction; return the loss mode, which ACRL changes."""
    if correction is None:
        return mode
    if isinstance(correction, Acrl):
        if mode not in WITH_ACRL:
            draft.rejected.append(f"objective modifier 'acrl' on loss mode {mode!r} (grpo and gspo have it)")
            return mode
        draft.overrides[f"{CORRECTION}.rollout_is"] = f"acrl_{correction.acrl_level}"
        draft.environment[f"{PREFIX}ACRL_GAMMA"] = f"{correction.acrl_gamma:g}"
        draft.environment[f"{PREFIX}ACRL_CLIP"] = f"{correction.acrl_clip:g}"
        if correction.acrl_reference is not None:
            draft.environment[f"{PREFIX}ACRL_REFERENCE"] = f"{correction.acrl_reference:g}"
        return WITH_ACRL[mode]
    if isinstance(correction, KpopWeights):
        draft.overrides[f"{CORRECTION}.rollout_is"] = "kpop"
        draft.environment[f"{PREFIX}KPOP_BOUND"] = f"{correction.kpop_bound:g}"
        return mode
    if isinstance(correction, Vaco):
        if mode not in WITH_VACO:
            draft.rejected.append(f"objective modifier 'vaco' on loss mode {mode!r} (grpo and gspo have it)")
            return mode
        _token_weights(draft)
        draft.environment[f"{PREFIX}VACO_BOUND"] = f"{correction.vaco_bound:g}"
        draft.environment[f"{PREFIX}VACO_CLIP"] = f"{correction.correction_clip:g}"
        return WITH_VACO[mode]
    if not isinstance(correction, Truncated | Masked) or correction.log_rho not in LEVELS:
        draft.rejected.append(f"objective.correction {type(correction).__name__}")
        return mode
    low, high = as_bounds(correction.correction_clip)
    if isinstance(correction, Truncated) and low:
        draft.rejected.append(
            f"objective.correction_clip ({low:g}, {high:g}) of a truncation (an upper bound)"
        )
    draft.overrides[f"{CORRECTION}.rollout_is"] = LEVELS[correction.log_rho]
    masked = f"{low:g}_{high:g}" if low else f"{NEVER}_{high:g}"
    draft.overrides[f"{CORRECTION}.rollout_is_threshold"] = (
        masked if isinstance(correction, Masked) else float(high)
    )
    return mode


def _off_policy_mask(draft: "Draft", delta: Any, mode: str) -> str:
    """Write OPSM; return the loss mode, which it changes."""
    if mode not in WITH_OPSM:
        draft.rejected.append(f"objective modifier 'opsm' on loss mode {mode!r} (grpo and gspo have it)")
        return mode
    draft.environment[f"{PREFIX}OPSM_DELTA"] = f"{delta:g}"
    draft.notes.append(
        "objective modifier 'opsm': dropped sequences stay in verl's denominators, as in slime"
    )
    return WITH_OPSM[mode]


# Masks that verl lacks, as values of rollout_rs.
PLUGIN_MASKS = frozenset(("kpop_mask", "m2_mask", "prob_diff"))


def _rejections(draft: "Draft", objective: Objective) -> None:
    names, thresholds = [], []
    for rejection in objective.rejections:
        level = getattr(getattr(rejection, "level", None), "__name__", "")
        if isinstance(rejection, RatioBand) and level in ("token", "seq_sum", "seq_mean"):
            bounds = rejection.rejection_bounds
            low, high = bounds if isinstance(bounds, tuple | list) else (1 / bounds, bounds)
            names.append(f"{level}_k1")
            thresholds.append(f"{low:g}_{high:g}")
        elif isinstance(rejection, DivergenceCap):
            names.append(f"{level}_{getattr(rejection.divergence, '__name__', '')}")
            thresholds.append(f"{rejection.rejection_bounds:g}")
        elif isinstance(rejection, KpopMask):
            names.append("kpop_mask")
            thresholds.append(f"{rejection.kpop_bound:g}")
        elif isinstance(rejection, SecondMomentMask):
            names.append("m2_mask")
            thresholds.append(f"{rejection.m2_threshold:g}")
        elif isinstance(rejection, ProbabilityDifference) and rejection.level is each_token:
            names.append("prob_diff")
            low, high = rejection.prob_diff_bounds
            thresholds.append(f"{low:g}_{high:g}")
        else:
            draft.rejected.append(f"objective.rejections: {type(rejection).__name__} at level {level!r}")
    if names:
        draft.overrides[f"{CORRECTION}.rollout_rs"] = ",".join(names)
        draft.overrides[f"{CORRECTION}.rollout_rs_threshold"] = ",".join(thresholds)
        if objective.baseline == "survivors":
            draft.notes.append("objective.baseline: verl leaves rejected siblings in the baseline ('all')")


def _distortion(draft: "Draft", distortion: Any) -> None:
    if isinstance(distortion, LowProbabilityDelta):
        draft.environment[f"{PREFIX}DISTORTION_DELTA"] = f"{distortion.distortion_delta:g}"
        draft.environment[f"{PREFIX}DISTORTION_THRESHOLD"] = f"{distortion.distortion_threshold:g}"
    elif isinstance(distortion, GaussianNoise):
        draft.environment[f"{PREFIX}DISTORTION_STD"] = f"{distortion.distortion_std:g}"


def _groups_together(draft: "Draft", transform: Any) -> None:
    """DFPO reads complete groups, so a micro-batch holds complete ones, in order."""
    draft.overrides |= {
        f"{ACTOR}.use_dynamic_bsz": False,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": "${actor_rollout_ref.rollout.n}",
        # verl wants both of one kind.
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": False,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": "${actor_rollout_ref.rollout.n}",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": "${actor_rollout_ref.rollout.n}",
        f"{ACTOR}.shuffle": False,
        "trainer.balance_batch": False,
    }
    if hasattr(transform, "transform_scale"):
        draft.environment[f"{PREFIX}TRANSFORM_SCALE"] = f"{transform.transform_scale:g}"
    if hasattr(transform, "rebalance_floor"):
        draft.environment[f"{PREFIX}REBALANCE_FLOOR"] = f"{transform.rebalance_floor:g}"
