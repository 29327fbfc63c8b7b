"""The presets, and the suffixes that compose on any of them: `grpo+tis`, `gspo+geo_mask+seq_tis`.

Where the five papers are silent the defaults are verl's (0.9.1).
"""

from dataclasses import dataclass, replace
from math import inf
from typing import Any

from simlab.core.catalog import lookup
from simlab.objectives import advantages, aggregation
from simlab.objectives.corrections import Acrl, Masked, Truncated, sequence_log_rho, token_log_rho
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
from simlab.objectives.rejection import DivergenceCap, OffPolicySequenceMask, RatioBand, k3, seq_mean
from simlab.objectives.transforms import (
    Differentiated,
    MinReplace,
    NonNegativeProjection,
    OrthogonalProjection,
    Scaled,
    TruncateAndRebalance,
    Unchanged,
)

GRPO = Objective(advantages.grpo, Clipped(token_ratio, DualClip(0.2, 0.2, inf)))
PPO = replace(
    GRPO,
    advantage=advantages.gae,
    surrogate=Clipped(token_ratio, DualClip(0.2, 0.2, 3.0)),
    aggregation=aggregation.token_mean,
)
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
class Suffix:
    """A stage to add to a preset, and the field of `Objective` that it fills."""

    field: str
    stage: Any
    source: str


SUFFIXES: dict[str, Suffix] = {
    "tis": Suffix(
        "correction",
        Truncated(token_log_rho, 2.0),
        source="lr Eq. 5, App. C; acrl Eq. 2; hacking Sec. 4.2",
    ),
    "mis": Suffix("correction", Masked(token_log_rho, 2.0), source="lr Eq. 6, App. C"),
    "seq_tis": Suffix("correction", Truncated(sequence_log_rho, 2.0), source="lr Eq. 5, App. C"),
    "seq_mis": Suffix("correction", Masked(sequence_log_rho, 2.0), source="lr Eq. 6, App. C; acrl Eq. 3"),
    "icepop": Suffix(
        "correction",
        Masked(token_log_rho, (0.5, 5.0)),
        source="verl RolloutCorrectionConfig.decoupled_token_icepop",
    ),
    "acrl": Suffix("correction", Acrl(0.65, 3.0, None, "group"), source="acrl Eq. 7-9, Sec. 5.1, Tab. 3"),
    "geo_mask": Suffix(
        "rejections",
        RatioBand(seq_mean, (0.999, 1.001)),
        source="verl RolloutCorrectionConfig.decoupled_geo_rs",
    ),
    "k3_mask": Suffix(
        "rejections",
        DivergenceCap(k3, seq_mean, 0.01),
        source="verl RolloutCorrectionConfig.decoupled_k3_rs",
    ),
    "opsm": Suffix("staleness", OffPolicySequenceMask(1e-4), source="slime opsm_delta"),
}


def named(name: str) -> Objective:
    """The objective called `name`: a preset, or a preset and suffixes joined by `+`.

    Raises `ValueError` for unknown names and for two suffixes that fill the same place.
    """
    base, *suffixes = name.split("+")
    objective = lookup(OBJECTIVES, base, kind="objective")
    for suffix in suffixes:
        added = lookup(SUFFIXES, suffix, kind="suffix")
        stage, present = added.stage, getattr(objective, added.field)
        if isinstance(present, tuple):
            stage = (*present, stage)
        elif present is not None:
            raise ValueError(f"{name!r} has two stages for {added.field!r}; keep one of its suffixes")
        objective = replace(objective, **{added.field: stage})
    return objective
