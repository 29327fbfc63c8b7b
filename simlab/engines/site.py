"""A site: one place of the forward pass at which a tensor is stored, and in which format."""

from dataclasses import replace
from typing import TypeVar

import jax
from jax import Array
from jaxtyping import Float

from simlab.core.arrays import AnyArray
from simlab.core.catalog import lookup
from simlab.core.pytree import Flag, pytree
from simlab.core.streams import stream
from simlab.formats import (
    FORMATS,
    OVERFLOWS,
    ROUNDINGS,
    SCALINGS,
    Format,
    Rounding,
    Scaling,
    StochasticRounding,
)
from simlab.formats.bit_constants import prepare_format
from simlab.formats.gradients import QuantizeSpec, quantize_spec, quantize_through

Record = TypeVar("Record")


@pytree
class Site:
    """Format, rounding, overflow rule and scaling of one stored tensor.

    `Site()` leaves float32 as it is and costs nothing. The numbers of `format`, `rounding` and `saturate` are
    data and may be traced; whether there is a format at all, whether rounding is stochastic, and the
    static fields of `scaling` shape the compiled function.
    """

    format: Format | None = None
    rounding: Rounding | StochasticRounding | None = None
    saturate: Flag | None = None
    scaling: Scaling | None = None

    @staticmethod
    def of(
        fmt: str | Format,
        rounding: str | Rounding | StochasticRounding = "nearest_even",
        overflow: str = "saturate",
        scaling: str | Scaling | None = None,
    ) -> "Site":
        """Return a site from names of the catalogs of `simlab.formats`, or from records.

        `Site.of("fp32")` rounds to float32, which changes nothing but has the static signature of any other
        format, so that it can be stacked with them.

        Raises:
            ValueError: For unknown names.
        """
        return Site(
            lookup(FORMATS, fmt, "format") if isinstance(fmt, str) else fmt,
            lookup(ROUNDINGS, rounding, "rounding") if isinstance(rounding, str) else rounding,
            lookup(OVERFLOWS, overflow, "overflow rule"),
            lookup(SCALINGS, scaling, "scaling") if isinstance(scaling, str) else scaling,
        )

    def spec(self, key: Array | None = None) -> QuantizeSpec:
        """Return the spec that the kernels of `simlab.formats` read; the site must have a format."""
        assert self.format is not None
        assert self.rounding is not None
        assert self.saturate is not None
        return quantize_spec(self.format, self.rounding, self.saturate, self.scaling, key)


FLOAT32_SITE = Site()


def store(x: Float[AnyArray, "*S"], site: Site, key: Array | None = None) -> Float[AnyArray, "*S"]:
    """Round float32 x (any shape) as the site says; the gradient is straight-through.

    `key` is needed only where the site rounds stochastically.
    """
    if site.format is None:
        return x
    return quantize_through("identity", x, site.spec(key), None)


def site_key(key: Array | None, name: str) -> Array | None:
    """Return the stream of one site below `key`, or None where nothing is stochastic."""
    return None if key is None else stream(key, name)


def rounds_stochastically(record: object) -> bool:
    """Return whether any site of a record rounds stochastically."""
    nodes = jax.tree.leaves(record, is_leaf=lambda node: isinstance(node, Site))
    return any(isinstance(node, Site) and isinstance(node.rounding, StochasticRounding) for node in nodes)


def prepare_sites(record: Record) -> Record:
    """Return a record with the constants of every rounding site computed; rounding gives the same bits.

    Call it outside the loops of a function whose formats are traced, see `prepare_format`.
    """
    return jax.tree.map(_prepare_site, record, is_leaf=lambda node: isinstance(node, Site))


def _prepare_site(node: object) -> object:
    if not isinstance(node, Site) or node.format is None:
        return node
    assert node.rounding is not None
    assert node.saturate is not None
    return replace(node, format=prepare_format(node.format, node.rounding, node.saturate))
