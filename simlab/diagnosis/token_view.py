"""The tokens of a log as the signatures read them, and the tests that several signatures share.

`TokenView.size` divides abs(log rho) by its typical value at the token's probability.
"""

from dataclasses import dataclass

import numpy as np

from simlab.diagnosis.log import TokenLog, log_rho
from simlab.diagnosis.rank_tests import mean_by_class, rank_values


@dataclass(frozen=True)
class TokenView:
    """Input of the signatures, [N]: arrays over the tokens of nonempty sequences.

    - `x`: log rho, nats; `train`, `infer`: log-probabilities.
    - `z`: log rho over its typical size at this probability, within +-10; `size`: abs(z); `rank`: rank of
      the size, 0 to 1.
    - `sequence`, `index`, `from_end`: position of the token; `length`: tokens of its sequence.
    """

    log: TokenLog
    x: np.ndarray
    train: np.ndarray
    infer: np.ndarray
    z: np.ndarray
    size: np.ndarray
    rank: np.ndarray
    sequence: np.ndarray
    index: np.ndarray
    from_end: np.ndarray
    length: np.ndarray


def view_log(log: TokenLog) -> TokenView:
    """Return the view of a log without masked tokens."""
    sequence, index = log.sequence, log.index
    length = log.lengths[sequence]
    x = log_rho(log).astype(np.float64)
    z = np.clip(x / _typical_size(x, log.logp_infer), -10, 10)
    size = np.abs(z)
    return TokenView(
        log=log,
        x=x,
        train=log.logp_train,
        infer=log.logp_infer,
        z=z,
        size=size,
        rank=(rank_values(size) - 0.5) / max(1, len(size)),
        sequence=sequence,
        index=index,
        from_end=length - 1 - index,
        length=length,
    )


def _typical_size(x: np.ndarray, infer: np.ndarray) -> np.ndarray:
    """Return the typical abs(x) of the tokens with about the same probability, [N]."""
    bins, count = bin_by_quantile(infer, int(np.clip(len(x) // 200, 1, 24)))
    order = np.argsort(bins, kind="stable")
    sizes = np.zeros(count)
    bounds = np.searchsorted(bins[order], np.arange(count + 1))
    magnitude = np.abs(x)[order]
    for number in range(count):
        inside = magnitude[bounds[number] : bounds[number + 1]]
        if len(inside):
            # The median is robust against outliers. If most values are exactly 0, use a tenth of the RMS.
            sizes[number] = max(1.48 * np.median(inside), 0.1 * np.sqrt(np.mean(inside**2)), 1e-7)
    return np.maximum(sizes, 1e-7)[bins]


def bin_by_quantile(values: np.ndarray, count: int) -> tuple[np.ndarray, int]:
    """Return the quantile bin of each value, and the number of bins.

    Args:
        values: numbers [N].
        count: number of bins with about equally many values; ties can merge bins.

    Returns:
        Bin of each value [N], from 0, and the number of bins, at most `count`.
    """
    edges = np.unique(np.quantile(values, np.linspace(0, 1, count + 1)[1:-1]))
    return np.searchsorted(edges, values, side="right"), len(edges) + 1


def rank_parts(view: TokenView, second: np.ndarray) -> list[np.ndarray]:
    """Return the mean rank of two parts of each sequence.

    Args:
        view: tokens [N] of S sequences.
        second: bool [N], the tokens of one part.

    Returns:
        Two arrays [S]: mean rank of the tokens at `second`, and of the other tokens.
    """
    count = len(view.log.lengths)
    return [mean_by_class(view.rank[part], view.sequence[part], count) for part in (second, ~second)]


def contrast(values: np.ndarray, chosen: np.ndarray) -> float:
    """Return the log of the mean of the chosen values over that of the others, shrunk if few are chosen.

    Args:
        values: nonnegative numbers [N].
        chosen: bool [N].

    Returns:
        NaN if one of the two sets has fewer than 4 values.
    """
    count, others = int(chosen.sum()), int(len(chosen) - chosen.sum())
    if min(count, others) < 4:
        return np.nan
    inside = float(values[chosen].mean())
    outside = (float(values.sum()) - inside * count) / others
    effect = np.log((inside + 0.02) / (outside + 0.02))
    return float(effect * min(count, others) / (min(count, others) + 20))


def signed_log(z: float) -> float:
    """Return sign(z) log(1 + abs(z)): a test statistic on the scale of the classifier."""
    return float(np.sign(z) * np.log1p(abs(z)))


def place_z(rank: np.ndarray, chosen: np.ndarray) -> float:
    """Return the `signed_log` of the Wilcoxon z of the ranks at `chosen`; NaN if fewer than 4 are chosen.

    Args:
        rank: ranks [N] scaled to (0, 1).
        chosen: bool [N].
    """
    count = int(chosen.sum())
    return signed_log(float(rank[chosen].mean() - 0.5) * np.sqrt(12 * count)) if count >= 4 else np.nan
