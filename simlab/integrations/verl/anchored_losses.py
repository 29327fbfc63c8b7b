"""Surrogates of 2026 that verl lacks, for torch: trust regions around the policy that sampled.

verl gives a policy loss no rollout log-probabilities, but with `rollout_is=token` and a threshold that never
acts its weights are rho = q / mu. So log mu = log q - log rho, and without weights the anchor is q itself.
Names, numbers and gradients are those of `simlab.objectives.trust_regions` and `weighted_likelihood`.
"""

# pyright: reportMissingImports=false

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from simlab.integrations.verl.losses import Batch

TOKEN_LIMIT = 20.0
DPPO_EPSILON = 1e-8
PRIME_RL_FLOOR = 1e-6
VESPO_LOG_FLOOR = math.log(1e-8)
VACO_LOG_LIMIT = 10.0


def rollout_logp(batch: "Batch") -> Tensor:
    """Return log mu [B, T] from the weights rho.

    Reference: verl rollout_corr_helper rollout_is token.
    """
    return batch.old - batch.weights.log()


def unit_weights(batch: "Batch") -> Tensor:
    """Return ones: the weights contain the anchor already."""
    return torch.ones_like(batch.weights)


def ratio(batch: "Batch") -> Tensor:
    """Return p / mu, the log clamped to +-20 with zero gradient beyond."""
    return (batch.new - rollout_logp(batch)).clamp(-TOKEN_LIMIT, TOKEN_LIMIT).exp()


def _gap(batch: "Batch") -> Tensor:
    return batch.new.detach().exp() - rollout_logp(batch).exp()


def score_through(weights: Tensor, batch: "Batch") -> Tensor:
    """Return `weights` as value, and as coefficient of log p."""
    return weights.detach() * (1 + batch.new - batch.new.detach())


def dppo_tv(batch: "Batch") -> Tensor:
    """Compute DPPO-Binary-TV; bounds are verl's clip ratios, the cap its clip_ratio_c.

    Reference: DPPO arXiv 2602.04879.
    """
    gap = _gap(batch)
    keep = torch.where(batch.advantages > 0, gap <= batch.clip_high, gap >= -batch.clip_low)
    return torch.where(keep, ratio(batch).clamp(max=batch.dual_clip), 0.0).detach() * batch.new


def dppo_kl(batch: "Batch") -> Tensor:
    """Compute DPPO-Binary-KL; bounds and cap as `dppo_tv`.

    Reference: DPPO arXiv 2602.04879; SkyRL ppo_utils.py dppo.
    """
    logp, anchor = batch.new.detach(), rollout_logp(batch)
    p, a = logp.clamp(max=0).exp(), anchor.clamp(max=0).exp()
    kl = a * (anchor - logp) + (1 - a) * ((1 - a + DPPO_EPSILON) / (1 - p + DPPO_EPSILON)).log()
    rising, falling = (kl <= batch.clip_high) | (p <= a), (kl <= batch.clip_low) | (p >= a)
    keep = torch.where(batch.advantages > 0, rising, falling)
    return torch.where(keep, ratio(batch).clamp(max=batch.dual_clip), 0.0).detach() * batch.new


def ipo(batch: "Batch") -> Tensor:
    """Compute IPO; the cap is verl's clip_ratio_c.

    Reference: prime-rl trainer/rl/loss.py ipo.
    """
    keep = _gap(batch).abs() <= batch.settings.divergence_bound
    return score_through(torch.where(keep, ratio(batch).clamp(max=batch.dual_clip), 0.0), batch)


def kpop(batch: "Batch") -> Tensor:
    """Compute KPop on the current policy.

    Reference: KPop, Ring blog of 2026-05-26; prime-rl pull request 3283.
    """
    logp, anchor = batch.new.detach(), rollout_logp(batch)
    keep = symmetric_binary_kl(logp, anchor, PRIME_RL_FLOOR) <= batch.settings.kpop_bound
    return score_through(torch.where(keep, ratio(batch), 0.0), batch)


def symmetric_binary_kl(log_p: Tensor, log_q: Tensor, floor: float) -> Tensor:
    """Return the larger of the two binary KL divergences of each token, each probability at least `floor`."""
    return torch.maximum(_binary_kl(log_p, log_q, floor), _binary_kl(log_q, log_p, floor))


def _binary_kl(log_p: Tensor, log_q: Tensor, floor: float) -> Tensor:
    (p, rest_p), (q, rest_q) = (
        (x.exp().clamp(floor, 1.0), (-x.expm1()).clamp(floor, 1.0)) for x in (log_p, log_q)
    )
    return p * (p / q).log() + rest_p * (rest_p / rest_q).log()


def drpo(batch: "Batch") -> Tensor:
    """Compute DRPO: w minus sign(A) mu (w - 1)^2 / (2 delta), w differentiated.

    Reference: DRPO arXiv 2606.09821.
    """
    weights, anchor = ratio(batch), rollout_logp(batch).clamp(max=0).exp()
    penalty = anchor * (weights - 1) ** 2 / (2 * batch.settings.drpo_delta)
    return weights - torch.sign(batch.advantages) * penalty


def m2po(batch: "Batch") -> Tensor:
    """Compute M2PO: drop the largest (log w)^2 of the tokens that move away from the rollout.

    Reference: M2PO arXiv 2510.01161 Algorithm 1.
    Deviation: the mask is that of the micro-batch; the paper's is that of the optimizer batch.
    """
    log_w = batch.new.detach() - rollout_logp(batch)
    outward = batch.mask & (batch.advantages * log_w > 0)
    within = smallest_with_mean(log_w**2, outward, batch.settings.m2_threshold, strict=False)
    return score_through(torch.where(within | ~outward, ratio(batch), 0.0), batch)


def smallest_with_mean(squares: Tensor, chosen: Tensor, bound: float, *, strict: bool) -> Tensor:
    """Return which of the `chosen` squares [B, T] stay when the largest go until their mean is small enough.

    `strict` requires a mean below `bound`, and keeps at least one entry; else the mean is at most `bound`.
    """
    order = squares[chosen].argsort(stable=True)
    ordered = squares[chosen][order]
    mean = ordered.cumsum(0) / torch.arange(1, len(ordered) + 1, device=ordered.device)
    count = int(((mean < bound) if strict else (mean <= bound)).sum())
    stays = torch.zeros_like(ordered, dtype=torch.bool)
    stays[order[: max(count, int(strict))]] = True
    return torch.zeros_like(chosen).masked_scatter(chosen, stays)


def rollout_gap(batch: "Batch") -> Tensor:
    """Return (log p - log mu)^2 [B, T].

    Reference: Kimi-K2.5 arXiv 2602.02276; prime-rl trainer/rl/loss.py.
    """
    return (batch.new - rollout_logp(batch)) ** 2


def vaco(batch: "Batch") -> Tensor:
    """Compute VaCO's weights: min(rho, C), zero at tokens that push a far sequence further away.

    Reference: VaCO arXiv 2603.01365; open-instruct grpo_utils.py rho_mask_tv_divergence.
    """
    log_rho, settings = batch.weights.log(), batch.settings
    distance = (log_rho.clamp(-VACO_LOG_LIMIT, VACO_LOG_LIMIT).exp() - 1).abs()
    tokens = batch.mask.sum(1, keepdim=True).clamp(min=1)
    far = torch.where(batch.mask, distance, 0.0).sum(1, keepdim=True) / tokens > settings.vaco_bound
    dropped = far & (torch.sign(log_rho) * batch.advantages > 0)
    return torch.where(dropped, 0.0, batch.weights.clamp(max=settings.vaco_clip))


def vespo(batch: "Batch") -> Tensor:
    """Compute VESPO: phi of the sequence's product of r and min(rho, cap); the cap is verl's clip_ratio_c.

    Reference: VESPO arXiv 2602.10693; TRL loss_type vespo.
    """
    settings = batch.settings
    log_r = (batch.new.detach() - batch.old).clamp(-TOKEN_LIMIT, TOKEN_LIMIT)
    log_rho = batch.weights.clamp(max=batch.dual_clip).log().clamp(VESPO_LOG_FLOOR, TOKEN_LIMIT)
    total = torch.where(batch.mask, log_r + log_rho, 0.0).sum(1, keepdim=True)
    total = total.clamp(VESPO_LOG_FLOOR, TOKEN_LIMIT)
    rising = batch.advantages >= 0
    k = torch.where(rising, settings.vespo_k_positive, settings.vespo_k_negative)
    scale = torch.where(rising, settings.vespo_lambda_positive, settings.vespo_lambda_negative)
    return (scale + k * total - scale * total.exp()).exp().detach() * batch.new
