"""Softmax and log-softmax with rounding at any step, and the placements of rounding in practice."""

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from simlab.core.arrays import AnyArray
from simlab.core.catalog import lookup
from simlab.engines.accumulate import Accumulator
from simlab.engines.catalog import find_engine
from simlab.engines.engine import Engine, Softmax
from simlab.engines.materialize_once import materialize_once
from simlab.engines.ordered_sums import largest_of_row, sum_of_row
from simlab.engines.site import Site, site_key, store
from simlab.formats import Format, Rounding, StochasticRounding
from simlab.formats.scale_rules import divide


def softmax(
    z: Float[AnyArray, "*B V"],
    engine: Engine | Softmax | str,
    key: Array | None = None,
    products: Accumulator | None = None,
) -> Float[Array, "*B V"]:
    """Compute the softmax over the last axis as the engine's `token_softmax` does.

    Logits are rounded, shifted by their maximum, exponentiated, summed (a fixed tree, so that the bits of a
    row do not depend on the batch) and divided, with a rounding after each step. Rounded probabilities are
    not normalized again. The sum is that of the rounded exponentials. The gradient is straight-through.

    Args:
        z: float32 logits [..., V]. -inf masks a logit, unless the format of the logits has no infinity.
        engine: an engine, its name, or the sites alone (see `softmax_placement`).
        key: of the random bits; needed where a site rounds stochastically.
        products: of the probabilities with values, which may free the order of the sum (`is_order_free`).

    Returns:
        Float32 probabilities [..., V].

    Example:
        >>> softmax(jnp.array([0.0, 1.0]), softmax_placement("probs", "bf16")).tolist()
        [0.26953125, 0.73046875]

    Reference: hacking Eq. 44-45.
    Deviation: the maximum is subtracted first, as every implementation does; in exact arithmetic it cancels.
    """
    sites = _sites(engine)
    exponentials = exponentials_at(z, sites, key)[1]
    total = total_at(exponentials, sites, key, products)
    return store(divide(exponentials, total), sites.probs, site_key(key, "probs"))


def log_softmax(
    z: Float[AnyArray, "*B V"], engine: Engine | Softmax | str, key: Array | None = None
) -> Float[Array, "*B V"]:
    """Compute the log-softmax over the last axis: shifted logits minus the log of the total.

    Args:
        z: float32 logits [..., V].
        engine: as in `softmax`; the last rounding is `log_probs`.
        key: of the random bits; needed where a site rounds stochastically.

    Returns:
        Float32 log-probabilities [..., V], in nats.

    Reference: verl torch_functional.logprobs_from_logits; vLLM Sampler.compute_logprobs.
    """
    sites = _sites(engine)
    shifted, exponentials = exponentials_at(z, sites, key)
    total = total_at(exponentials, sites, key)
    return store(shifted - jnp.log(total), sites.log_probs, site_key(key, "log_probs"))


def _sites(engine: Engine | Softmax | str) -> Softmax:
    return engine if isinstance(engine, Softmax) else find_engine(engine).token_softmax


def exponentials_at(
    z: Float[AnyArray, "*B V"], sites: Softmax, key: Array | None = None
) -> tuple[Float[Array, "*B V"], Float[Array, "*B V"]]:
    """Return (z - max z, exp of it), both rounded to their sites, of z's shape [..., V]."""
    z = store(z, sites.logits, site_key(key, "logits"))
    largest = largest_of_row(z)
    shifted = store(z - largest, sites.shifted, site_key(key, "shifted"))
    exponentials = store(jnp.exp(shifted), sites.exponentials, site_key(key, "exponentials"))
    return shifted, materialize_once(exponentials, sites.exponentials)


def total_at(
    exponentials: Float[AnyArray, "*B V"],
    sites: Softmax,
    key: Array | None = None,
    products: Accumulator | None = None,
) -> Float[Array, "*B 1"]:
    """Return the sum over the last axis, rounded to its site, [..., 1]; `products` as in `softmax`."""
    return store(sum_of_row(exponentials, products)[..., None], sites.total, site_key(key, "total"))


@dataclass(frozen=True)
class Placement:
    """The steps of a softmax that are rounded (`sites`), and the software that does so (`practice`)."""

    sites: tuple[str, ...]
    practice: str


SOFTMAX_PLACEMENTS: dict[str, Placement] = {
    "float32": Placement((), "nothing rounded: the reference"),
    "logits": Placement(("logits",), "BF16 lm_head, float32 softmax: vLLM's sampler, verl's trainers"),
    "probs": Placement(("probs",), "float32 logits, probabilities returned in the model's type"),
    "logits-probs": Placement(
        ("logits", "probs"),
        "float32 inside: torch.softmax of a BF16 tensor, and the reading of hacking Eq. 45 that gives Tab. 2",
    ),
    "logits-exponentials": Placement(
        ("logits", "exponentials"), "weights rounded before they are normalized, sum of the rounded ones"
    ),
    "exponentials": Placement(
        ("exponentials",), "fused attention: float32 scores, unnormalized weights rounded"
    ),
    "exp-and-sum": Placement(
        ("logits", "exponentials", "total", "probs"), "BF16 exp and sum, shift in float32"
    ),
    "everywhere": Placement(
        ("logits", "shifted", "exponentials", "total", "probs", "log_probs"),
        "each step a BF16 operation of its own (sum kept in float32 and rounded once)",
    ),
    "log-probs": Placement(("log_probs",), "float32 logits, log-probabilities returned in the model's type"),
    "logits-log-probs": Placement(("logits", "log_probs"), "torch.log_softmax of a BF16 tensor"),
}


def softmax_placement(
    name: str,
    fmt: str | Format = "bf16",
    rounding: str | Rounding | StochasticRounding = "nearest_even",
) -> Softmax:
    """Return the sites of the placement `name` of `SOFTMAX_PLACEMENTS`, rounded to `fmt`.

    The steps that the placement leaves alone are rounded to fp32, which changes nothing and keeps one static
    signature for all placements and formats: stack them with `simlab.formats.stack` and `jax.vmap` over them.

    Raises:
        ValueError: For unknown names.

    Reference: hacking Eq. 45, Tab. 2.
    """
    chosen = lookup(SOFTMAX_PLACEMENTS, name, "softmax placement").sites
    rounded, untouched = Site.of(fmt, rounding, "format"), Site.of("fp32", rounding, "format")
    steps = ("logits", "shifted", "exponentials", "total", "probs", "log_probs")
    return Softmax(**{step: rounded if step in chosen else untouched for step in steps})
