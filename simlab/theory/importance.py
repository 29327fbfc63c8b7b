"""Expected averages of rho and 1/rho, and survival bias by the policy that sorts the tokens."""

import numpy as np
from jaxtyping import Float


def inverse_rho_mean(
    train: Float[np.ndarray, "K V"], infer: Float[np.ndarray, "K V"]
) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
    """Return E over pi_infer of 1/rho for each row of `[K, V]`, and what it equals: 1 + chi2(infer, train).

    Hence at least 1, equal to 1 only for equal rows, infinite where pi_train misses a token of pi_infer.

    Reference: hacking Eq. 46, 47.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        left = np.where(infer > 0, infer**2 / train, 0.0).sum(-1)
        chi2 = np.where((infer > 0) | (train > 0), (infer - train) ** 2 / train, 0.0).sum(-1)
    return left, 1.0 + chi2


def rho_mean(
    train: Float[np.ndarray, "K V"], infer: Float[np.ndarray, "K V"]
) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
    """Return E over pi_infer of rho per row, and what it equals: the mass of pi_train on infer's support.

    1 exactly while the engine can sample every token; below 1 as soon as it cannot (underflow, top-p).

    Reference: hacking Eq. 5.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        left = np.where(infer > 0, infer * (train / infer), 0.0).sum(-1)
    return left, np.where(infer > 0, train, 0.0).sum(-1)


def rho_variance(train: Float[np.ndarray, "K V"], infer: Float[np.ndarray, "K V"]) -> Float[np.ndarray, " K"]:
    """Return Var of rho under pi_infer per row, which is chi2(train, infer).

    Reference: hacking Eq. 5.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(infer > 0, (train - infer) ** 2 / infer, 0.0).sum(-1)


def mean_rho_in_bins(
    train: Float[np.ndarray, "K V"],
    infer: Float[np.ndarray, "K V"],
    edges: Float[np.ndarray, " E"],
    sorted_by: str,
) -> tuple[Float[np.ndarray, " E-1"], Float[np.ndarray, " E-1"]]:
    """Return E over pi_infer of rho given the bin, and the sampled mass of each bin; `[len(edges) - 1]`.

    Tokens of all rows are put into bins by their probability under `sorted_by` ("train" or "infer").
    Under pi_infer the mean of rho in any set of tokens is the set's mass under pi_train over its mass
    under pi_infer. NaN where nothing is sampled.

    Reference: hacking Fig. 7, App. C.2.
    """
    if sorted_by not in ("train", "infer"):
        raise ValueError(f"sorted_by must be train or infer, got {sorted_by!r}")
    key = {"train": train, "infer": infer}[sorted_by]
    bins = np.digitize(key.ravel(), edges) - 1
    inside = (bins >= 0) & (bins < len(edges) - 1)
    mass_train, mass_infer = (
        np.bincount(bins[inside], rows.ravel()[inside], minlength=len(edges) - 1) for rows in (train, infer)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(mass_infer > 0, mass_train / mass_infer, np.nan), mass_infer / len(infer)


def survival_bias(
    sorting: Float[np.ndarray, "K V"], noise_variance: float, sorted_by: str, logit_variance: float = np.inf
) -> Float[np.ndarray, "K V"]:
    """Return the predicted mean of rho minus 1 for each token of the policy that sorts, `[K, V]`.

    Let the engine add N(0, s^2) to the logits. Expanding p_a e^{n_a} / sum_b p_b e^{n_b} to second order,
    E[infer_a / train_a | train] = 1 + s^2 (c - p_a) with c = sum_b p_b^2, so among tokens sorted by train
        mean rho - 1 = -s^2 (c - p_a):
    below 1 exactly for tokens less likely than the row's collision probability c. Sorted by infer the
    noise that a token survived no longer has mean zero: with Gaussian logits of variance v,
    E[n_a | z_a + n_a] = k (z_a - mean z) with k = s^2 / (v + s^2), and variance k v is left. To order s^2
        mean rho - 1 = -k (z_a - sum_b q_b z_b) + k v (c - q_a), c = sum_b q_b^2:
    above 1 for rare tokens, because a rare token of the engine is one that its noise has pushed down.

    Reference: hacking App. C.2; acrl Sec. 4.3.
    Deviation: the paper gives an inequality for 1/rho over all tokens; this is the bias per token, a
    result of ours, to second order in the noise.
    """
    collision = (sorting**2).sum(-1, keepdims=True)
    if sorted_by == "train":
        return -noise_variance * (collision - sorting)
    shrink = 0.0 if np.isinf(logit_variance) else noise_variance / (logit_variance + noise_variance)
    left = noise_variance if np.isinf(logit_variance) else shrink * logit_variance
    logits = np.log(sorting)
    centered = logits - (sorting * logits).sum(-1, keepdims=True)
    return -shrink * centered + left * (collision - sorting)
