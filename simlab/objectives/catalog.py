"""The presets, and the modifiers that compose on any of them: `grpo+tis`, `gspo+geo_mask+seq_tis`.

Where the five papers are silent the defaults are verl's (0.9.1).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from simlab.core.catalog import lookup
from simlab.objectives import advantages, aggregation
from simlab.objectives.corrections import (
    Acrl,
    KpopWeights,
    Masked,
    Truncated,
    Vaco,
    sequence_log_rho,
    token_log_rho,
)
from simlab.objectives.covariance import ClipCov, KlCov
from simlab.objectives.distortions import GaussianNoise, LowProbabilityDelta
from simlab.objectives.objective import Objective
from simlab.objectives.ratios import (
    Clipped,
    ClippedWeight,
    DualClip,
    GeometricMean,
    LogLikelihood,
    SignAwareClip,
    SignFreeClip,
    SignFreeWeight,
    SoftGate,
    geometric_ratio,
    token_ratio,
)
from simlab.objectives.regularizers import RolloutKl
from simlab.objectives.rejection import (
    DivergenceCap,
    KpopMask,
    OffPolicySequenceMask,
    ProbabilityDifference,
    RatioBand,
    SecondMomentMask,
    k2,
    k3,
    seq_max,
    seq_mean,
)
from simlab.objectives.transforms import (
    Differentiated,
    MinReplace,
    NonNegativeProjection,
    OrthogonalProjection,
    Scaled,
    TruncateAndRebalance,
    Unchanged,
)
from simlab.objectives.trust_regions import DppoKl, DppoTv, Drpo, Ipo, Kpop, M2po
from simlab.objectives.vocabulary_terms import ScoreCentering
from simlab.objectives.weighted_likelihood import Dro, Vespo

GRPO = Objective(advantages.grpo, Clipped(token_ratio, DualClip(0.2, 0.2, inf)))
PPO = replace(
    GRPO,
    advantage=advantages.gae,
    surrogate=Clipped(token_ratio, DualClip(0.2, 0.2, 3.0)),
    aggregation=aggregation.token_mean,
)
TOKEN_MEAN = replace(GRPO, aggregation=aggregation.token_mean)
GSPO = replace(GRPO, surrogate=Clipped(geometric_ratio, SignAwareClip(3e-4, 4e-4)))
GRPO_FIX = replace(
    GRPO, surrogate=Clipped(token_ratio, SignFreeClip(0.2)), aggregation=aggregation.seq_mean_token_sum
)

OBJECTIVES: dict[str, Objective] = {
    "reinforce": Objective(
        advantages.reward,
        LogLikelihood(),
        aggregation=aggregation.seq_mean_token_sum,
        source="lr Eq. 2",
    ),
    # Clip 0.2 / 0.28 from lr; the rest is verl's default loss.
    "rloo": replace(
        PPO,
        advantage=advantages.rloo,
        surrogate=Clipped(token_ratio, DualClip(0.2, 0.28, 3.0)),
        source="lr App. C; verl core_algos.compute_policy_loss_vanilla",
    ),
    "ppo": replace(PPO, source="acrl Tab. 4; verl core_algos.compute_policy_loss_vanilla"),
    "grpo": replace(GRPO, source="hacking Eq. 2; acrl Eq. 1"),
    "dr_grpo": replace(
        PPO,
        advantage=advantages.grpo_no_std,
        aggregation=aggregation.seq_mean_token_sum_norm,
        source="Dr. GRPO arXiv 2503.20783; verl core_algos.compute_policy_loss_vanilla",
    ),
    # The frameworks filter groups while sampling; here the filtered tokens leave the loss.
    "dapo": replace(
        PPO,
        advantage=advantages.grpo,
        surrogate=Clipped(token_ratio, DualClip(0.2, 0.28, 3.0)),
        group_filter=True,
        source="hacking Sec. 4.3; acrl Tab. 4; verl core_algos.compute_policy_loss_vanilla",
    ),
    "gspo": replace(GSPO, source="hacking Eq. 16, Sec. 4.1; cancel Eq. 42-44, 64-66"),
    "gmpo": replace(
        GRPO, surrogate=GeometricMean(0.4, 0.4), source="verl core_algos.compute_policy_loss_geo_mean"
    ),
    "cispo": replace(
        GRPO,
        surrogate=ClippedWeight(0.2, 0.2),
        aggregation=aggregation.token_mean,
        source="verl core_algos.compute_policy_loss_cispo",
    ),
    "sapo": replace(GRPO, surrogate=SoftGate(1.0, 1.05), source="verl core_algos.compute_policy_loss_sapo"),
    "dppo_tv": replace(
        TOKEN_MEAN,
        surrogate=DppoTv(),
        source="DPPO arXiv 2602.04879; verl core_algos.compute_policy_loss_dppo_tv",
    ),
    "dppo_kl": replace(
        TOKEN_MEAN,
        surrogate=DppoKl(),
        source="DPPO arXiv 2602.04879; verl core_algos.compute_policy_loss_dppo_kl",
    ),
    "ipo": replace(TOKEN_MEAN, surrogate=Ipo(), source="prime-rl trainer/rl/loss.py ipo, 2026-09"),
    "kpop": replace(TOKEN_MEAN, surrogate=Kpop(), source="KPop, Ring blog of 2026-05-26; prime-rl pull 3283"),
    "drpo": replace(
        TOKEN_MEAN,
        surrogate=Drpo(),
        source="DRPO arXiv 2606.09821; UniRL unirl/algorithms/drpo.py",
    ),
    "vespo": replace(TOKEN_MEAN, surrogate=Vespo(), source="VESPO arXiv 2602.10693; TRL loss_type vespo"),
    "luspo": replace(
        GSPO,
        surrogate=Clipped(geometric_ratio, SignAwareClip(2e-3, 2.5e-3)),
        aggregation=aggregation.seq_mean_token_sum,
        source="LUSPO arXiv 2602.05261; TRL loss_type luspo",
    ),
    "m2po": replace(TOKEN_MEAN, surrogate=M2po(), source="M2PO arXiv 2510.01161; Trinity-RFT pull 615"),
    "gpg": replace(
        TOKEN_MEAN,
        advantage=advantages.gpg,
        surrogate=LogLikelihood(),
        source="GPG arXiv 2504.02546; verl core_algos.compute_policy_loss_gpg",
    ),
    "dro": replace(
        TOKEN_MEAN, surrogate=Dro(), source="DRO arXiv 2405.19107; verl core_algos.compute_policy_loss_dro"
    ),
    "clip_cov": replace(
        TOKEN_MEAN,
        surrogate=ClipCov(),
        source="arXiv 2505.22617; verl core_algos.compute_policy_loss_clip_cov",
    ),
    "kl_cov": replace(
        TOKEN_MEAN,
        surrogate=KlCov(),
        source="arXiv 2505.22617; verl core_algos.compute_policy_loss_kl_cov",
    ),
    "grpo_fix": replace(GRPO_FIX, source="cancel Eq. 79, 80"),
    "grpo_fix_weight": replace(GRPO_FIX, surrogate=SignFreeWeight(0.2), source="cancel Eq. 81, 82"),
    # Stop-gradient alone: the control for every transform below. The paper gives no clip range: GSPO's.
    "dfpo_none": replace(GSPO, transform=Unchanged(), source="cancel Eq. 83, 86"),
    "dfpo_min": replace(GSPO, transform=MinReplace(), source="cancel Eq. 17, 50, 84, 85"),
    "dfpo_orth": replace(GSPO, transform=OrthogonalProjection(), source="cancel Eq. 18, 63"),
    "dfpo_posorth": replace(GSPO, transform=NonNegativeProjection(), source="cancel Eq. 51"),
    "dfpo_rebalance": replace(GSPO, transform=TruncateAndRebalance(), source="cancel Eq. 52-55"),
    # The two ablations, as `transforms.py` defines them.
    "dfpo_min_no_stop": replace(GSPO, transform=Differentiated(MinReplace()), source="cancel Tab. 3"),
    "dfpo_scale": replace(GSPO, transform=Scaled(0.5), source="cancel Tab. 3"),
    "gspo_bias": replace(
        GSPO, distortion=LowProbabilityDelta(2.0, 0.1), source="hacking Eq. 17, 18, Fig. 5, 6"
    ),
    "gspo_noise": replace(GSPO, distortion=GaussianNoise(0.2), source="hacking Eq. 21, Fig. 12"),
}


@dataclass(frozen=True)
class ObjectiveModifier:
    """A component to add to a preset (`stage`), the field of `Objective` that it fills, and its source."""

    field: str
    stage: object
    source: str


OBJECTIVE_MODIFIERS: dict[str, ObjectiveModifier] = {
    "tis": ObjectiveModifier(
        "correction",
        Truncated(token_log_rho, 2.0),
        source="lr Eq. 5, App. C; acrl Eq. 2; hacking Sec. 4.2",
    ),
    "mis": ObjectiveModifier("correction", Masked(token_log_rho, 2.0), source="lr Eq. 6, App. C"),
    "seq_tis": ObjectiveModifier("correction", Truncated(sequence_log_rho, 2.0), source="lr Eq. 5, App. C"),
    "seq_mis": ObjectiveModifier(
        "correction", Masked(sequence_log_rho, 2.0), source="lr Eq. 6, App. C; acrl Eq. 3"
    ),
    "icepop": ObjectiveModifier(
        "correction",
        Masked(token_log_rho, (0.5, 5.0)),
        source="verl RolloutCorrectionConfig.decoupled_token_icepop",
    ),
    "acrl": ObjectiveModifier(
        "correction", Acrl(0.65, 3.0, None, "group"), source="acrl Eq. 7-9, Sec. 5.1, Tab. 3"
    ),
    "geo_mask": ObjectiveModifier(
        "rejections",
        RatioBand(seq_mean, (0.999, 1.001)),
        source="verl RolloutCorrectionConfig.decoupled_geo_rs",
    ),
    "k3_mask": ObjectiveModifier(
        "rejections",
        DivergenceCap(k3, seq_mean, 0.01),
        source="verl RolloutCorrectionConfig.decoupled_k3_rs",
    ),
    "kpop": ObjectiveModifier(
        "correction", KpopWeights(0.1), source="KPop, Ring blog of 2026-05-26; AReaL functional.py binary_kl"
    ),
    "vaco": ObjectiveModifier(
        "correction", Vaco(0.3, 2.0), source="VaCO arXiv 2603.01365; open-instruct rho_mask_tv_divergence"
    ),
    "kpop_mask": ObjectiveModifier(
        "rejections", KpopMask(0.1), source="KPop, Ring blog of 2026-05-26; verl pull 6800 binary_kl"
    ),
    "m2_mask": ObjectiveModifier(
        "rejections", SecondMomentMask(0.04), source="M2PO arXiv 2510.01161; AReaL functional.py m2_threshold"
    ),
    "prob_diff": ObjectiveModifier(
        "rejections", ProbabilityDifference((-0.2, 0.2)), source="ROLL train_infer_corrections.py diff filter"
    ),
    # verl has no default for the bound.
    "trm": ObjectiveModifier(
        "rejections",
        DivergenceCap(k2, seq_max, 0.05),
        source="Trust Region Masking arXiv 2512.23075; verl rollout_corr_helper seq_max_k2",
    ),
    "rollout_kl": ObjectiveModifier(
        "regularizers", RolloutKl(1e-3), source="Kimi-K2.5 arXiv 2602.02276; prime-rl trainer/rl/loss.py"
    ),
    "score_centering": ObjectiveModifier(
        "centering",
        ScoreCentering(),
        source="score centering arXiv 2609.20807; torchtitan rl/losses/score_centering.py",
    ),
    "opsm": ObjectiveModifier("staleness", OffPolicySequenceMask(1e-4), source="slime opsm_delta"),
}


def get_objective(name: str) -> Objective:
    """Return the objective called `name`: a preset, or a preset and modifiers joined by `+`.

    Raises:
        ValueError: For unknown names, and for two modifiers of the same component.
    """
    base, *modifiers = name.split("+")
    return with_modifiers(lookup(OBJECTIVES, base, kind="objective"), modifiers, name)


def with_modifiers(objective: Objective, modifiers: Sequence[str], name: str) -> Objective:
    """Return `objective` with the components that `modifiers` name.

    Args:
        objective: the record to extend.
        modifiers: names of `OBJECTIVE_MODIFIERS`.
        name: the name of the result in errors.

    Raises:
        ValueError: For an unknown modifier, and for two modifiers of the same component.
    """
    for modifier in modifiers:
        added = lookup(OBJECTIVE_MODIFIERS, modifier, kind="modifier")
        stage, present = added.stage, getattr(objective, added.field)
        if isinstance(present, tuple):
            stage = (*present, stage)
        elif present is not None:
            raise ValueError(f"{name!r} has two modifiers of {added.field!r}. Keep one of them.")
        objective = replace(objective, **{added.field: stage})
    return objective
