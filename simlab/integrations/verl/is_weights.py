"""IS corrections that `rollout_is` of verl lacks, computed from the complete batch.

They write `rollout_is_weights` like those of verl and can be combined with `rollout_rs`, whose values the
plug-in extends, too.
"""

# pyright: reportMissingImports=false

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from simlab.core.json_value import Json
from simlab.integrations.verl.anchored_losses import TOKEN_LIMIT, smallest_with_mean, symmetric_binary_kl
from simlab.integrations.verl.protocols import DataProto
from simlab.integrations.verl.settings import Settings

AREAL_FLOOR = 1e-8


def log_rho(old: Tensor, rollout: Tensor) -> Tensor:
    """Return log rho of each token [B, T], clamped to +-20."""
    return (old - rollout).clamp(-TOKEN_LIMIT, TOKEN_LIMIT)


def acrl_powers(
    old: Tensor, rollout: Tensor, mask: Tensor, groups: Sequence[object], level: str, settings: Settings
) -> Tensor:
    """Return rho^(gamma (1 - Y / X)) [B, T]: ACRL's weight up to the sign of the advantage and its clip.

    Y is the mean discrepancy over the "sequence", the "group" of equal entries in `groups`, or the "batch";
    X is `acrl_reference`, by default the batch's.

    Reference: acrl Eq. 5-9.
    """
    real, difference = mask.bool(), (old.clamp(max=0).exp() - rollout.clamp(max=0).exp()).abs()
    tokens = real.sum(1)
    d = torch.where(real, difference, 0.0).sum(1) / tokens.clamp(min=1)
    counted = (tokens > 0).to(d.dtype)
    everything = (d * counted).sum() / counted.sum().clamp(min=1)
    current = {
        "sequence": lambda: d,
        "group": lambda: _group_mean(d, counted, groups),
        "batch": lambda: everything.expand_as(d),
    }[level]()
    reference = everything if settings.acrl_reference is None else torch.tensor(settings.acrl_reference)
    strength = settings.acrl_gamma * (1 - current / reference) if reference > 0 else torch.zeros_like(d)
    powers = (strength[:, None] * log_rho(old, rollout)).clamp(-TOKEN_LIMIT, TOKEN_LIMIT).exp()
    return torch.where(real, powers, 1.0)


def _group_mean(d: Tensor, counted: Tensor, groups: Sequence[object]) -> Tensor:
    numbers = {name: number for number, name in enumerate(dict.fromkeys(map(str, groups)))}
    index = torch.tensor([numbers[str(name)] for name in groups], device=d.device)
    totals = torch.zeros(len(numbers), device=d.device, dtype=d.dtype).index_add_(0, index, d * counted)
    counts = torch.zeros_like(totals).index_add_(0, index, counted)
    return (totals / counts.clamp(min=1))[index]


def geometric_weights(old: Tensor, rollout: Tensor, mask: Tensor, threshold: float | str) -> Tensor:
    """Return exp of the mean log rho of each sequence [B, T], truncated at C or zero outside "lo_hi".

    Reference: slime tis_level geometric.
    """
    real = mask.bool()
    mean = torch.where(real, old - rollout, 0.0).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)
    rho = mean.clamp(-TOKEN_LIMIT, TOKEN_LIMIT).exp().expand_as(old)
    low, _, high = str(threshold).rpartition("_")
    if low:
        inside = (rho >= float(low)) & (rho <= float(high))
        return torch.where(inside & real, rho, 0.0)
    return torch.where(real, rho.clamp(max=float(high)), 0.0)


CORRECTIONS = ("acrl_sequence", "acrl_group", "acrl_batch", "geometric", "kpop")
"""Values of `algorithm.rollout_correction.rollout_is` that the plug-in adds."""


def kpop_weights(old: Tensor, rollout: Tensor, mask: Tensor, bound: float) -> Tensor:
    """Return rho [B, T], zero where the symmetric binary KL of the engines exceeds `bound`.

    Reference: KPop, Ring blog of 2026-05-26; AReaL functional.py metric binary_kl.
    """
    near = symmetric_binary_kl(old, rollout, AREAL_FLOOR) <= bound
    return torch.where(mask.bool() & near, log_rho(old, rollout).exp(), 0.0)


def keep_kpop(old: Tensor, rollout: Tensor, mask: Tensor, threshold: str) -> Tensor:
    """Return where the symmetric binary KL of the engines is at most the threshold [B, T].

    Reference: KPop, Ring blog of 2026-05-26; verl pull request 6800 binary_kl.
    """
    del mask
    return symmetric_binary_kl(old, rollout, AREAL_FLOOR) <= float(threshold)


def keep_second_moment(old: Tensor, rollout: Tensor, mask: Tensor, threshold: str) -> Tensor:
    """Return the tokens [B, T] with the smallest (log rho)^2 whose mean is below the threshold.

    Reference: M2PO arXiv 2510.01161; AReaL actor.py m2_threshold.
    """
    real = mask.bool()
    if not bool(real.any()):
        return real
    return smallest_with_mean(log_rho(old, rollout) ** 2, real, float(threshold), strict=True)


def keep_difference(old: Tensor, rollout: Tensor, mask: Tensor, threshold: str) -> Tensor:
    """Return where pi_train - pi_infer lies within "low_high" [B, T].

    Reference: ROLL train_infer_corrections.py, diff filter at token level.
    """
    del mask
    low, high = (float(bound) for bound in threshold.split("_"))
    difference = old.clamp(max=0).exp() - rollout.clamp(max=0).exp()
    return (difference >= low) & (difference <= high)


RejectionRule = Callable[[Tensor, Tensor, Tensor, str], Tensor]
REJECTIONS: dict[str, RejectionRule] = {
    "kpop_mask": keep_kpop,
    "m2_mask": keep_second_moment,
    "prob_diff": keep_difference,
}
"""Values of `algorithm.rollout_correction.rollout_rs` that the plug-in adds."""


def split_rejections(config: Mapping[str, Json]) -> tuple[list[tuple[str, str]], dict[str, Json]]:
    """Return (name, threshold) of the plug-in's rejections, and `config` with verl's alone."""
    names = [name.strip() for name in str(config.get("rollout_rs") or "").split(",") if name.strip()]
    if not set(names) & set(REJECTIONS):
        return [], dict(config)
    thresholds = [bound.strip() for bound in str(config.get("rollout_rs_threshold")).split(",")]
    if len(thresholds) != len(names):
        raise ValueError(f"rollout_rs_threshold must hold {len(names)} thresholds, got {len(thresholds)}.")
    pairs = list(zip(names, thresholds, strict=True))
    verls = [pair for pair in pairs if pair[0] not in REJECTIONS]
    rest = {
        **config,
        "rollout_rs": ",".join(name for name, _ in verls) or None,
        "rollout_rs_threshold": ",".join(bound for _, bound in verls) or None,
    }
    return [pair for pair in pairs if pair[0] in REJECTIONS], rest


Corrected = tuple[DataProto, dict[str, Json]]
Correction = Callable[[DataProto, Mapping[str, Json]], Corrected]


def wrap_rollout_correction(original: Correction, settings: Settings) -> Correction:
    """Add `CORRECTIONS` and `REJECTIONS` to `compute_rollout_correction_and_add_to_batch` of verl."""

    def correct(batch: DataProto, rollout_corr_config: Mapping[str, Json]) -> Corrected:
        rejections, rest = split_rejections(rollout_corr_config)
        if not rejections:
            return weigh(batch, rollout_corr_config)
        old, rollout, mask = _columns(batch)
        batch, metrics = weigh(batch, rest)
        for name, threshold in rejections:
            accepted = REJECTIONS[name](old, rollout, mask, threshold).to(mask.dtype)
            batch.batch["response_mask"] = batch.batch["response_mask"] * accepted
        return batch, metrics

    def weigh(batch: DataProto, rollout_corr_config: Mapping[str, Json]) -> Corrected:
        kind = rollout_corr_config.get("rollout_is", None)
        if kind not in CORRECTIONS:
            return original(batch, rollout_corr_config)
        old, rollout, mask = _columns(batch)
        if kind == "geometric":
            threshold = rollout_corr_config.get("rollout_is_threshold", 2.0)
            weights = geometric_weights(old, rollout, mask, threshold)
        elif kind == "kpop":
            weights = kpop_weights(old, rollout, mask, settings.kpop_bound)
        else:
            groups = batch.non_tensor_batch["uid"]
            weights = acrl_powers(old, rollout, mask, groups, kind.removeprefix("acrl_"), settings)
        batch, metrics = original(batch, {**rollout_corr_config, "rollout_is": None})
        batch.batch["rollout_is_weights"] = weights
        real = weights[mask.bool()]
        if len(real):
            metrics |= {
                "rollout_corr/rollout_is_mean": real.mean().item(),
                "rollout_corr/rollout_is_max": real.max().item(),
                "rollout_corr/rollout_is_min": real.min().item(),
            }
        return batch, metrics

    return correct


def _columns(batch: DataProto) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities of the trainer and the rollout, and the mask, [B, T] each."""
    return batch.batch["old_log_probs"], batch.batch["rollout_log_probs"], batch.batch["response_mask"]
