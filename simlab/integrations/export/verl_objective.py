"""Convert an objective into verl's loss mode, estimator, rollout correction and plug-in settings."""

import math
from dataclasses import dataclass, field
from typing import Any

from simlab.core.json_value import Json
from simlab.integrations.export.verl_yaml import full_key
from simlab.integrations.verl.settings import NUMBERS as SETTINGS
from simlab.integrations.verl.settings import PREFIX
from simlab.objectives import ADVANTAGES, AGGREGATIONS, Objective
from simlab.objectives.corrections import Acrl, KpopWeights, Masked, Truncated, Vaco, as_bounds
from simlab.objectives.corrections import geometric_log_rho as geometric
from simlab.objectives.corrections import sequence_log_rho as sequence
from simlab.objectives.corrections import token_log_rho as token
from simlab.objectives.divergences import old_logp, rollout_logp
from simlab.objectives.rejection import (
    DivergenceCap,
    KpopMask,
    ProbabilityDifference,
    RatioBand,
    SecondMomentMask,
)
from simlab.objectives.rejection import token as each_token

ACTOR, CORRECTION = "actor_rollout_ref.actor", "algorithm.rollout_correction"

# Losses of the plug-in that read the rollout from verl's token weights, which then weigh nothing.
_ANCHORED = ("ipo", "kpop", "drpo", "vespo", "m2po")
AROUND_ROLLOUT = ("dppo_tv", "dppo_kl", *_ANCHORED)
_PLUGIN_LOSSES = (*_ANCHORED, "grpo_fix", "grpo_fix_weight", "gspo_bias", "gspo_noise")
_DFPO = ("none", "min", "orth", "posorth", "rebalance", "min_no_stop", "scale")
_VERL_LOSSES = ("cispo", "sapo", "gpg", "dppo_tv", "dppo_kl", "dro", "clip_cov", "kl_cov")
# The surrogate of a preset -> verl's loss mode. `simlab_` ones are the plug-in's.
LOSS_MODES = {
    **dict.fromkeys(("grpo", "ppo", "rloo", "dr_grpo", "dapo"), "vanilla"),
    "reinforce": "gpg",
    "gspo": "gspo",
    "gmpo": "geo_mean",
    **{name: name for name in _VERL_LOSSES},
    # verl's gspo ignores the aggregation.
    "luspo": "simlab_gspo",
    **{name: f"simlab_{name}" for name in _PLUGIN_LOSSES},
    **{f"dfpo_{kind}": f"simlab_dfpo_{kind}" for kind in _DFPO},
}
# Loss modes of verl that the plug-in has variants of -> the start of their names.
VARIANTS = {"vanilla": "simlab_grpo", "gspo": "simlab_gspo"}
_OTB: dict[str, Json] = {
    "algorithm.adv_estimator": "optimal_token_baseline",
    f"{ACTOR}.calculate_sum_pi_squared": True,
}
ESTIMATORS: dict[str, dict[str, Json]] = {
    "grpo": {"algorithm.adv_estimator": "grpo"},
    "grpo_no_std": {"algorithm.adv_estimator": "grpo", "algorithm.norm_adv_by_std_in_grpo": False},
    "rloo": {"algorithm.adv_estimator": "rloo"},
    "reward": {"algorithm.adv_estimator": "simlab_reward"},
    "gpg": {"algorithm.adv_estimator": "gpg"},
    "otb": _OTB,
    "otb_full_tail": _OTB,
    "whitened": {"algorithm.adv_estimator": "reinforce_plus_plus"},
}
LEVELS: dict[object, str] = {token: "token", sequence: "sequence", geometric: "geometric"}
# verl has no switch for the dual clip; beyond exp(20) it never acts.
NO_DUAL_CLIP = 1e10
# A lower bound that never acts, since ratios are at least exp(-20).
NEVER = "1e-30"


@dataclass
class Draft:
    """A `VerlRun` under construction; `rejected` lists the settings without a counterpart in verl."""

    backend: str
    overrides: dict[str, Json]
    environment: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)

    def write_settings(self, stage: object) -> None:
        """Write the numbers of a stage that verl's config has no field for: settings of the plug-in."""
        for name in SETTINGS:
            if getattr(stage, name, None) is not None:
                self.environment[PREFIX + name.upper()] = f"{getattr(stage, name):g}"


def map_objective(draft: Draft, objective: Objective, name: str) -> None:
    """Write the overrides of an objective into `draft`; `name` is the preset with its modifiers."""
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
        mode = f"simlab_{base}"
        _around_rollout(draft, objective)
    elif not objective.regularizers:
        mode = _correction(draft, objective.correction, mode)
    for regularizer in objective.regularizers:
        mode = _rollout_kl(draft, objective, mode, regularizer)
    _rejections(draft, objective)
    if objective.centering is not None:
        draft.rejected.append("objective modifier 'score_centering' (verl's losses see one token of V)")
    draft.write_settings(objective.distortion)
    if objective.transform is not None:
        _groups_together(draft, objective.transform)
    if objective.staleness is not None:
        mode = _variant(draft, mode, "opsm")
        draft.write_settings(objective.staleness)
        draft.notes.append(
            "objective modifier 'opsm': dropped sequences stay in verl's denominators, as in slime"
        )
    draft.overrides[f"{ACTOR}.policy_loss.loss_mode"] = mode


def _key(catalog: Any, value: Any) -> str:
    return next(name for name, entry in catalog.items() if entry is value)


def _estimator(draft: Draft, objective: Objective) -> None:
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


def _surrogate(draft: Draft, surrogate: Any) -> None:
    holder = getattr(surrogate, "clip", surrogate)
    for ours, theirs in NUMBERS.items():
        if hasattr(holder, ours):
            value = getattr(holder, ours)
            infinite = ours == "dual_clip" and math.isinf(value)
            draft.overrides[full_key(theirs)] = NO_DUAL_CLIP if infinite else value
    draft.write_settings(surrogate)
    if getattr(surrogate, "divergence_top_k", None) is not None:
        draft.rejected.append("objective.divergence_top_k (verl's losses see the sampled token alone)")


def _around_rollout(draft: Draft, objective: Objective) -> None:
    """Write the token weights rho, from which the plug-in's losses compute the rollout's log-probs."""
    if objective.correction is not None:
        draft.rejected.append("objective.anchor 'rollout' with a correction (both take rollout_is_weights)")
    _token_weights(draft)


def _token_weights(draft: Draft) -> None:
    draft.overrides[f"{CORRECTION}.rollout_is"] = "token"
    draft.overrides[f"{CORRECTION}.rollout_is_threshold"] = NO_DUAL_CLIP


def _rollout_kl(draft: Draft, objective: Objective, mode: str, term: Any) -> str:
    """Write the rollout KL; return the loss mode that has it."""
    mode = VARIANTS.get(mode, mode)
    known = mode.removeprefix("simlab_") in (*AROUND_ROLLOUT, "grpo", "gspo")
    if not known or getattr(objective.surrogate, "anchor", None) is old_logp:
        draft.rejected.append(
            f"objective modifier 'rollout_kl' on loss mode {mode!r} (grpo, gspo and anchor 'rollout' have it)"
        )
        return mode
    _around_rollout(draft, objective)
    draft.write_settings(term)
    return f"{mode}_rollout_kl"


def _variant(draft: Draft, mode: str, modifier: str) -> str:
    """Return the plug-in's loss mode that has a modifier besides what verl's `mode` has."""
    if mode not in VARIANTS:
        draft.rejected.append(
            f"objective modifier {modifier!r} on loss mode {mode!r} (grpo and gspo have it)"
        )
        return mode
    return f"{VARIANTS[mode]}_{modifier}"


def _correction(draft: Draft, correction: Any, mode: str) -> str:
    """Write a correction; return the loss mode, which ACRL changes."""
    if correction is None:
        return mode
    draft.write_settings(correction)
    if isinstance(correction, Acrl):
        draft.overrides[f"{CORRECTION}.rollout_is"] = f"acrl_{correction.acrl_level}"
        return _variant(draft, mode, "acrl")
    if isinstance(correction, KpopWeights):
        draft.overrides[f"{CORRECTION}.rollout_is"] = "kpop"
        return mode
    if isinstance(correction, Vaco):
        _token_weights(draft)
        draft.environment[f"{PREFIX}VACO_CLIP"] = f"{correction.correction_clip:g}"
        return _variant(draft, mode, "vaco")
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


# Masks that verl lacks, as values of rollout_rs.
PLUGIN_MASKS = frozenset(("kpop_mask", "m2_mask", "prob_diff"))


def _rejections(draft: Draft, objective: Objective) -> None:
    pairs = [_mask(draft, rejection) for rejection in objective.rejections]
    if pairs:
        names, thresholds = zip(*pairs, strict=True)
        draft.overrides[f"{CORRECTION}.rollout_rs"] = ",".join(names)
        draft.overrides[f"{CORRECTION}.rollout_rs_threshold"] = ",".join(thresholds)
        if objective.baseline == "survivors":
            draft.notes.append("objective.baseline: verl leaves rejected siblings in the baseline ('all')")


def _mask(draft: Draft, rejection: Any) -> tuple[str, str]:
    """Return the name of a mask in `rollout_rs`, and its threshold."""
    level = getattr(getattr(rejection, "level", None), "__name__", "")
    if isinstance(rejection, RatioBand) and level in ("token", "seq_sum", "seq_mean"):
        bounds = rejection.rejection_bounds
        low, high = bounds if isinstance(bounds, tuple | list) else (1 / bounds, bounds)
        return f"{level}_k1", f"{low:g}_{high:g}"
    if isinstance(rejection, DivergenceCap):
        return f"{level}_{getattr(rejection.divergence, '__name__', '')}", f"{rejection.rejection_bounds:g}"
    if isinstance(rejection, KpopMask):
        return "kpop_mask", f"{rejection.kpop_bound:g}"
    if isinstance(rejection, SecondMomentMask):
        return "m2_mask", f"{rejection.m2_threshold:g}"
    if isinstance(rejection, ProbabilityDifference) and rejection.level is each_token:
        low, high = rejection.prob_diff_bounds
        return "prob_diff", f"{low:g}_{high:g}"
    draft.rejected.append(f"objective.rejections: {type(rejection).__name__} at level {level!r}")
    return "", ""


def _groups_together(draft: Draft, transform: Any) -> None:
    """Set what keeps groups together and in order; DFPO reads complete groups."""
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
    draft.write_settings(transform)
