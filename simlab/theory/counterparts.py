"""The same corrections in `simlab.objectives`, and their moments by brute force over all groups."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from simlab.objectives import (
    ADVANTAGES,
    AGGREGATIONS,
    Objective,
    TokenBatch,
    get_objective,
    token_coefficients,
)
from simlab.objectives.corrections import (
    Masked,
    Truncated,
    geometric_log_rho,
    sequence_log_rho,
    token_log_rho,
)
from simlab.objectives.objective import override_names, with_overrides
from simlab.objectives.rejection import Veto
from simlab.theory.correction_moments import ACRL_LEVEL, CLIP, sequence_discrepancy
from simlab.theory.expectation import PolicyPair, expect
from simlab.theory.group_rules import all_groups, moments_over_groups

PLAIN = replace(get_objective("reinforce"), advantage=ADVANTAGES["rloo"])
"""A log pi summed over tokens, with RLOO advantages: the coefficient is the advantage over G."""


def _add_modifier(name: str) -> Objective:
    return replace(
        get_objective(name), advantage=PLAIN.advantage, aggregation=AGGREGATIONS["seq-mean-token-sum"]
    )


COUNTERPARTS: dict[str, tuple[str, Objective]] = {
    "tis": ("token TIS", _add_modifier("reinforce+tis")),
    "mis": ("token MIS", _add_modifier("reinforce+mis")),
    "seq_tis": ("sequence TIS", _add_modifier("reinforce+seq_tis")),
    "seq_mis": ("sequence MIS", _add_modifier("reinforce+seq_mis")),
    "icepop": ("IcePop", _add_modifier("reinforce+icepop")),
    "acrl": ("ACRL", _add_modifier("reinforce+acrl")),
    "geo_mask": ("geometric mask", _add_modifier("reinforce+geo_mask")),
    "k3_mask": ("k3 mask", _add_modifier("reinforce+k3_mask")),
    # It compares theta with theta_old, which are the same here.
    "opsm": ("none", _add_modifier("reinforce+opsm")),
    "gmpo+tis": ("GMPO pooled TIS", _add_modifier("gmpo+tis")),
    "none": ("none", PLAIN),
    "dfpo_min": ("none", _add_modifier("dfpo_min")),
    "dfpo_orth": ("none", _add_modifier("dfpo_orth")),
    "acrl per sequence": (
        "ACRL per sequence",
        with_overrides(_add_modifier("reinforce+acrl"), acrl_level="sequence"),
    ),
    "token IS": ("token IS", replace(PLAIN, correction=Truncated(token_log_rho, float("inf")))),
    "sequence IS": ("sequence IS", replace(PLAIN, correction=Truncated(sequence_log_rho, float("inf")))),
    "geometric TIS": ("geometric TIS", replace(PLAIN, correction=Truncated(geometric_log_rho, CLIP))),
    "geometric MIS": ("geometric MIS", replace(PLAIN, correction=Masked(geometric_log_rho, CLIP))),
    "kpop": ("KPop", _add_modifier("reinforce+kpop")),
    "vaco": ("VaCO", _add_modifier("reinforce+vaco")),
    "kpop_mask": ("KPop mask", _add_modifier("reinforce+kpop_mask")),
    "prob_diff": ("probability difference", _add_modifier("reinforce+prob_diff")),
    "trm": ("trust region mask", _add_modifier("reinforce+trm")),
    **{
        name: (correction, _add_modifier(name))
        for name, correction in (
            ("dppo_tv", "DPPO-TV"),
            ("dppo_kl", "DPPO-KL"),
            ("ipo", "IPO"),
            ("drpo", "DRPO"),
            ("vespo", "VESPO"),
        )
    },
    "kpop preset": ("KPop", _add_modifier("kpop")),
    "veto": ("veto", replace(PLAIN, rejections=(Veto(0.5),))),
}
"""The correction in `CORRECTIONS` or `RECENT`, and the objective, of each name in simlab."""


def counterpart(name: str, pair: PolicyPair) -> tuple[str, Objective]:
    """Return the correction's name and objective; ACRL's reference is set as in `corrections.acrl`."""
    correction, objective = COUNTERPARTS[name]
    if "acrl_reference" in override_names(objective):
        reference = expect(pair.probs_infer, sequence_discrepancy(pair)) / ACRL_LEVEL
        objective = with_overrides(objective, acrl_reference=reference)
    return correction, objective


def enumerate_moments(
    pair: PolicyPair, objective: Objective, rewards: Float[np.ndarray, " S"], size: int
) -> tuple[Float[np.ndarray, "K V"], float]:
    """Enumerate mean `[K, V]` and total variance of the gradient of `objective` over all S^G groups.

    The coefficients are the objective's own, in float32: an oracle for `group_gradient_moments`.

    Reference: lr Eq. 3-6; acrl Eq. 1-9.
    """
    chosen = all_groups(len(rewards), size)
    coefficients = _all_coefficients(objective, pair, rewards, chosen)
    gradients = np.zeros((len(chosen), pair.train.size))
    for group, (members, c) in enumerate(zip(chosen, coefficients, strict=True)):
        weights = np.zeros(pair.space.tokens.shape)
        np.add.at(weights, members, c)
        gradients[group] = pair.gradient(weights).ravel()
    mean, variance = moments_over_groups(pair, chosen, gradients)
    return mean.reshape(pair.train.shape), variance


def _all_coefficients(
    objective: Objective, pair: PolicyPair, rewards: np.ndarray, chosen: np.ndarray
) -> np.ndarray:
    """Return token coefficients `[N, G, T]` of groups `chosen` `[N, G]` at theta_old."""
    train, infer = (jnp.asarray(x[chosen], jnp.float32) for x in (pair.logp_train, pair.logp_infer))
    mask = jnp.asarray(pair.space.mask[chosen])
    scores = jnp.asarray(rewards[chosen], jnp.float32)

    def one_group(train: jax.Array, infer: jax.Array, mask: jax.Array, scores: jax.Array) -> jax.Array:
        batch = TokenBatch(train, train, infer, scores, mask, chosen.shape[1])
        return token_coefficients(objective, batch)

    return np.asarray(jax.jit(jax.vmap(one_group))(train, infer, mask, scores), np.float64)
