"""simlab's objectives as policy losses of verl, for torch.

A surrogate maps a `Batch` to u [B, T]; the loss is minus the aggregate of A u w. Names, bounds and gradients
are those of `simlab.objectives`; a test compares value and gradient inside verl.
"""

# pyright: reportMissingImports=false

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from simlab.integrations.verl import anchored_losses, group_transforms
from simlab.integrations.verl.anchored_losses import TOKEN_LIMIT
from simlab.integrations.verl.protocols import LossConfig
from simlab.integrations.verl.settings import Settings

SEQUENCE_LIMIT = 10.0


@dataclass(frozen=True)
class Batch:
    """A micro-batch [B, T] as verl gives it to a policy loss; `weights` are its rollout_is_weights, or 1.

    `group_size` is verl's rollout.n; a loss over groups needs each complete, in one micro-batch.
    """

    old: Tensor
    new: Tensor
    advantages: Tensor
    mask: Tensor
    weights: Tensor
    clip_low: float
    clip_high: float
    dual_clip: float
    group_size: int
    settings: Settings


Surrogate = Callable[[Batch], Tensor]


def token_ratio(batch: Batch) -> Tensor:
    """Return r of each token, its log clamped to +-20.

    Reference: verl core_algos.compute_policy_loss_vanilla.
    """
    return (batch.new - batch.old).clamp(-TOKEN_LIMIT, TOKEN_LIMIT).exp()


def geometric_ratio(batch: Batch) -> Tensor:
    """Compute exp of the mean log ratio as value, the token's own score as gradient.

    Reference: hacking Eq. 16; verl core_algos.compute_policy_loss_gspo.
    """
    log_ratio = torch.where(batch.mask, batch.new - batch.old, 0.0)
    mean = log_ratio.sum(1, keepdim=True) / batch.mask.sum(1, keepdim=True).clamp(min=1)
    return (batch.new - batch.new.detach() + mean.detach()).clamp(max=SEQUENCE_LIMIT).exp()


def sign_aware(batch: Batch, ratio: Tensor) -> Tensor:
    """Bound above for A >= 0, below for A < 0.

    Reference: hacking Eq. 2, 12, 16.
    """
    low, high = ratio.clamp(min=1 - batch.clip_low), ratio.clamp(max=1 + batch.clip_high)
    return torch.where(batch.advantages < 0, low, high)


def ppo(batch: Batch) -> Tensor:
    """Compute verl's vanilla loss: token ratio with clip and dual clip.

    Reference: verl core_algos.compute_policy_loss_vanilla.
    """
    weights = sign_aware(batch, token_ratio(batch))
    return torch.where((batch.advantages < 0) & (weights > batch.dual_clip), batch.dual_clip, weights)


def gspo(batch: Batch) -> Tensor:
    """Compute GSPO: sequence ratio with its clip.

    Reference: hacking Eq. 16; cancel Eq. 44.
    """
    return sign_aware(batch, geometric_ratio(batch))


def grpo_fix(batch: Batch) -> Tensor:
    """Compute clip(r, 0, 1 + clip_ratio_high) for either sign of the advantage.

    Reference: cancel Eq. 79, 80.
    """
    return token_ratio(batch).clamp(max=1 + batch.clip_high)


def grpo_fix_weight(batch: Batch) -> Tensor:
    """Compute `grpo_fix` as a constant weight on the score.

    Reference: cancel Eq. 81, 82.
    """
    return anchored_losses.score_through(grpo_fix(batch), batch)


def group_transformed(transform: Callable, *, stop: bool = True) -> Surrogate:
    """Compute GSPO's post-clip weights, transformed group by group.

    Reference: cancel Eq. 16, 45, 68, 70, 85.
    """

    def surrogate(batch: Batch) -> Tensor:
        real = batch.mask.any(1)
        highest = gspo(batch).masked_fill(~batch.mask, -torch.inf).amax(1)
        weights, advantages, present = (
            by_group(x, batch.group_size)
            for x in (torch.where(real, highest, 1.0), _of_sequence(batch), real)
        )
        _check_groups(advantages, present)
        transformed = transform(weights, advantages, present, batch.settings).reshape(-1, 1)
        return anchored_losses.score_through(transformed, batch) if stop else transformed * batch.new

    return surrogate


def by_group(x: Tensor, group_size: int) -> Tensor:
    """View [B] as [N, G]; `ValueError` when the micro-batch does not hold complete groups."""
    if len(x) % group_size:
        raise ValueError(
            f"a micro-batch of {len(x)} sequences does not hold complete groups of {group_size}: set "
            "ppo_micro_batch_size_per_gpu to a multiple of rollout.n, use_dynamic_bsz=False, "
            "trainer.balance_batch=False and actor.shuffle=False"
        )
    return x.reshape(-1, group_size)


def _check_groups(advantages: Tensor, real: Tensor) -> None:
    # Advantages of a complete group sum to zero; those of a wrong one hardly ever do.
    # (verl hands an empty response an advantage of zero, whatever its reward: such groups are not judged.)
    sums, size = advantages.sum(1).abs(), advantages.abs().sum(1)
    if bool(((sums > 1e-2 * size.clamp(min=1e-6)) & real.all(1)).any()):
        raise ValueError(
            "the advantages of a group do not sum to zero: groups are not together in the micro-batch "
            "(trainer.balance_batch=False, actor.shuffle=False), or the estimator has no group baseline"
        )


def _of_sequence(batch: Batch) -> Tensor:
    first = batch.mask.int().argmax(1, keepdim=True)
    return batch.advantages.gather(1, first)[:, 0]


def get_received_weights(batch: Batch) -> Tensor:
    """Return verl's rollout_is_weights."""
    return batch.weights


def acrl(batch: Batch) -> Tensor:
    """Compute min(rho^alpha, C) from rho^|alpha|, which `rollout_is=acrl_*` put into rollout_is_weights.

    Reference: acrl Eq. 7-9.
    """
    power = torch.sign(batch.advantages)
    return batch.weights.pow(power).clamp(max=batch.settings.acrl_clip)


def low_probability_delta(batch: Batch) -> Tensor:
    """Return `distortion_delta` where pi_train is below `distortion_threshold`.

    Reference: hacking Eq. 17, 18.
    """
    low = batch.old.exp() < batch.settings.distortion_threshold
    return torch.where(low, batch.settings.distortion_delta, 1.0) * batch.weights


def gaussian_noise(batch: Batch) -> Tensor:
    """Return weights from N(1, `distortion_std`^2), drawn anew in every forward pass.

    Reference: hacking Eq. 21, Fig. 12.
    """
    return (1 + batch.settings.distortion_std * torch.randn_like(batch.old)) * batch.weights


def keep_all_tokens(batch: Batch) -> Tensor:
    """Keep all tokens."""
    return batch.mask


def drop_stale_sequences(batch: Batch) -> Tensor:
    """Drop sequences with A < 0 whose mean of logp_train - logp exceeds `opsm_delta`.

    Reference: slime use_opsm, opsm_delta.
    """
    tokens = batch.mask.sum(1, keepdim=True).clamp(min=1)
    drift = torch.where(batch.mask, batch.old - batch.new.detach(), 0.0).sum(1, keepdim=True) / tokens
    return batch.mask & ~((batch.advantages < 0) & (drift > batch.settings.opsm_delta))


@dataclass(frozen=True)
class Loss:
    """A policy loss, registered as `simlab_` and its name: the factor of the advantage, and the token mask.

    `penalty` [B, T] is averaged over the tokens, times `rollout_kl_coefficient`.
    """

    surrogate: Surrogate
    weights: Callable[[Batch], Tensor] = get_received_weights
    token_mask: Callable[[Batch], Tensor] = keep_all_tokens
    penalty: Callable[[Batch], Tensor] | None = None


ANCHORED = {
    surrogate.__name__: Loss(surrogate, anchored_losses.unit_weights)
    for surrogate in (
        anchored_losses.dppo_tv,
        anchored_losses.dppo_kl,
        anchored_losses.ipo,
        anchored_losses.kpop,
        anchored_losses.drpo,
        anchored_losses.vespo,
        anchored_losses.m2po,
    )
}
# Variants of grpo and gspo, by the end of their names.
VARIANTS = {
    "": Loss(ppo),
    "_acrl": Loss(ppo, acrl),
    "_opsm": Loss(ppo, token_mask=drop_stale_sequences),
    "_vaco": Loss(ppo, anchored_losses.vaco),
    "_bias": Loss(ppo, low_probability_delta),
    "_noise": Loss(ppo, gaussian_noise),
}
# With `rollout_is=token` around the rollout, these have its log-probabilities.
AROUND_ROLLOUT = {
    **ANCHORED,
    "grpo": Loss(ppo, anchored_losses.unit_weights),
    "gspo": Loss(gspo, anchored_losses.unit_weights),
}


LOSSES: dict[str, Loss] = {
    **{
        f"{name}{variant}": replace(loss, surrogate=surrogate)
        for name, surrogate in (("grpo", ppo), ("gspo", gspo))
        for variant, loss in VARIANTS.items()
    },
    "grpo_fix": Loss(grpo_fix),
    "grpo_fix_weight": Loss(grpo_fix_weight),
    "dfpo_none": Loss(group_transformed(group_transforms.keep_weights)),
    "dfpo_min": Loss(group_transformed(group_transforms.min_replace)),
    "dfpo_orth": Loss(group_transformed(group_transforms.orthogonal)),
    "dfpo_posorth": Loss(group_transformed(group_transforms.non_negative)),
    "dfpo_rebalance": Loss(group_transformed(group_transforms.rebalance)),
    "dfpo_min_no_stop": Loss(group_transformed(group_transforms.min_replace, stop=False)),
    "dfpo_scale": Loss(group_transformed(group_transforms.scale_weights)),
    **ANCHORED,
    **{
        f"{name}_rollout_kl": replace(loss, penalty=anchored_losses.rollout_gap)
        for name, loss in AROUND_ROLLOUT.items()
    },
}


def raw_rewards(token_level_rewards: Tensor, response_mask: Tensor, **_: object) -> tuple[Tensor, Tensor]:
    """Return advantage and return of each token: its sequence's reward, no baseline.

    Reference: lr Eq. 2-4.
    """
    rewards = token_level_rewards.sum(1, keepdim=True) * response_mask
    return rewards, rewards


ESTIMATORS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {"reward": raw_rewards}


def terms(loss: Loss, batch: Batch) -> Tensor:
    """Return the loss of each token [B, T], zero at padding, before aggregation."""
    per_token = -batch.advantages * loss.surrogate(batch) * loss.weights(batch).detach()
    return torch.where(batch.mask, per_token, 0.0)


def batch_of(
    old: Tensor,
    new: Tensor,
    advantages: Tensor,
    mask: Tensor,
    config: LossConfig,
    weights: Tensor | None,
    settings: Settings,
) -> Batch:
    """Return the arguments of a verl policy loss as one record; padding holds zeros, weights one."""
    real = mask.bool()
    low, high = config.clip_ratio_low, config.clip_ratio_high
    return Batch(
        old=torch.where(real, old, 0.0),
        new=torch.where(real, new, 0.0),
        advantages=torch.where(real, advantages, 0.0),
        mask=real,
        weights=torch.ones_like(old) if weights is None else torch.where(real, weights, 1.0),
        clip_low=config.clip_ratio if low is None else low,
        clip_high=config.clip_ratio if high is None else high,
        dual_clip=config.get("clip_ratio_c", 3.0),
        group_size=config.rollout_n,
        settings=settings,
    )
