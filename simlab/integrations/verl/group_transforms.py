"""DFPO's transforms of the sequence weights of a group in torch; see `simlab.objectives.transforms`.

Each maps (weights, advantages, real), all [N, G], to weights [N, G], and ignores sequences that are not real.
"""

# pyright: reportMissingImports=false

import torch
from torch import Tensor

from simlab.integrations.verl.settings import Settings


def keep_weights(weights: Tensor, advantages: Tensor, real: Tensor, settings: Settings) -> Tensor:
    """Return the weights unchanged, as the reference.

    Reference: cancel Eq. 83, 86.
    """
    del advantages, real, settings
    return weights


def min_replace(weights: Tensor, advantages: Tensor, real: Tensor, settings: Settings) -> Tensor:
    """Replace each weight by the smallest of the group.

    Reference: cancel Eq. 17, 50, 84.
    """
    del advantages, settings
    smallest = weights.masked_fill(~real, torch.inf).amin(1, keepdim=True)
    return torch.where(real.any(1, keepdim=True), smallest, 1.0).expand_as(weights)


def orthogonal(weights: Tensor, advantages: Tensor, real: Tensor, settings: Settings) -> Tensor:
    """Return w - (A.w / A.A) A.

    Reference: cancel Eq. 18, 63.
    """
    del settings
    a = advantages * real
    return weights - _ratio((a * weights).sum(1, keepdim=True), (a * a).sum(1, keepdim=True)) * a


def non_negative(weights: Tensor, advantages: Tensor, real: Tensor, settings: Settings) -> Tensor:
    """Return the nearest weights v >= 0 with sum A v = 0, by the active set of the closed form.

    Reference: cancel Eq. 51.
    """
    del settings
    a = advantages * real
    leaves = weights / torch.where(a == 0, 1.0, a)
    at_leaving = (weights[:, None] - leaves[:, :, None] * a[:, None]).clamp(min=0)
    g = (a[:, None] * at_leaving).sum(2)
    active = torch.where(a > 0, g <= 0, torch.where(a < 0, g >= 0, True))
    chosen = a * active
    multiplier = _ratio((chosen * weights).sum(1, keepdim=True), (chosen * chosen).sum(1, keepdim=True))
    return torch.where(active, (weights - multiplier * a).clamp(min=0), 0.0)


def rebalance(weights: Tensor, advantages: Tensor, real: Tensor, settings: Settings) -> Tensor:
    """Raise weights to the floor, then shrink the heavier side until sum A w = 0.

    Reference: cancel Eq. 52-55.
    """
    a = advantages * real
    raised = weights.clamp(min=settings.rebalance_floor)
    positive = (a.clamp(min=0) * raised).sum(1, keepdim=True)
    negative = ((-a).clamp(min=0) * raised).sum(1, keepdim=True)
    up, down = _ratio(negative, positive).clamp(max=1), _ratio(positive, negative).clamp(max=1)
    return raised * torch.where(a > 0, up, torch.where(a < 0, down, 1.0))


def scale_weights(weights: Tensor, advantages: Tensor, real: Tensor, settings: Settings) -> Tensor:
    """Multiply all weights by one constant.

    Reference: cancel Tab. 3.
    """
    del advantages, real
    return settings.transform_scale * weights


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    usable = denominator != 0
    return torch.where(usable, numerator / torch.where(usable, denominator, 1.0), 0.0)
