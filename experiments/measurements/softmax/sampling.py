"""Gaussian logits, their softmax probabilities under a rounding, and tokens drawn from them.

As in the paper's Appendix C.1: logits z ~ N(0, 1.5^2) in float32, a vocabulary of 2048; tokens are drawn
from the rounded probabilities, and both probabilities of each drawn token are stored. The paper says how many
token probabilities it computes (5e4), not from how many vectors of logits: that is `per_vector`.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from simlab.core.pytree import pytree
from simlab.core.streams import stream
from simlab.engines.engine import Softmax
from simlab.engines.ordered_sums import tree_sum
from simlab.engines.site import Site, store
from simlab.engines.softmax import SOFTMAX_PLACEMENTS, exponentials_at, softmax_placement
from simlab.formats import Format, Rounding
from simlab.formats.scale_rules import divide

STD = 1.5
VOCABULARY = 2048
CHUNK = 250  # vectors at a time: 2 MB of logits, which stay in the processor's cache
BLOCK = 64
UNROUNDED = Site()
CENTERED = "centered-logits"
"""The placement `logits` after the largest logit is subtracted."""


@pytree
class Setting:
    """The sites of a softmax, and what else may differ between two settings; every field is traced.

    `centered` is 1 where the largest logit is subtracted before the logits are rounded, `from_log` is
    True where the engine returns log-probabilities and the probability is the exponential of those.
    """

    sites: Softmax
    temperature: Array | float = 1.0
    centered: Array | float = 0.0
    from_log: Array | bool = False


EXACT = Setting(Softmax())


def make_setting(
    placement: str,
    fmt: str | Format,
    rounding: str | Rounding = "nearest_even",
    temperature: Array | float = 1.0,
) -> Setting:
    """Return the setting that rounds at `placement`: a name of `SOFTMAX_PLACEMENTS`, or `centered-logits`."""
    centered = placement == CENTERED
    name = "logits" if centered else placement
    sites = softmax_placement(name, fmt, rounding)
    rounded = SOFTMAX_PLACEMENTS[name].sites
    return Setting(sites, temperature, float(centered), "log_probs" in rounded and "probs" not in rounded)


def probabilities(z: Array, rest: Array, chosen: Setting) -> Array:
    """Return the probabilities [n, V] of logits `z` [n, V], rounded where `chosen` says.

    `rest` [n] is the logsumexp of logits that are not in `z` (-inf for none): it enters the normalizer
    in float32, is not rounded and gets no column. Temperature divides the rounded logits, as in engines
    whose last layer writes the format and whose sampler works in float32.
    """
    sites = chosen.sites
    shift = chosen.centered * z.max(-1, keepdims=True)
    z = store(z - shift, sites.logits) / chosen.temperature
    shifted, exponentials = exponentials_at(z, replace(sites, logits=UNROUNDED))
    remainder = jnp.exp((rest[:, None] - shift) / chosen.temperature - z.max(-1, keepdims=True))
    total = store(tree_sum(exponentials)[..., None] + remainder, sites.total)
    return jax.lax.cond(
        chosen.from_log,
        lambda: jnp.exp(store(shifted - jnp.log(total), sites.log_probs)),
        lambda: store(divide(exponentials, total), sites.probs),
    )


def logits(key: Array, n: int, vocabulary: int = VOCABULARY) -> Array:
    """Return n vectors of logits [n, vocabulary]."""
    return STD * jax.random.normal(stream(key, "logits"), (n, vocabulary), jnp.float32)


def chunk_keys(seed: int, count: int) -> Array:
    """Return one key per chunk of vectors; a chunk's key does not depend on how many there are."""
    key = stream(jax.random.key(seed), "chunks")
    return jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(count))


def draw(p: Array, u: Array) -> Array:
    """Return the tokens [k] at which the running sum of `p` [V] passes u [k] of its total.

    `p` need not sum to 1. Blocks first, then tokens of a block: that keeps the float32 sums short,
    and their rounding below 1e-6 of the total.
    """
    blocks = jnp.pad(p, (0, -len(p) % BLOCK)).reshape(-1, BLOCK)
    ends = jnp.cumsum(blocks.sum(-1))
    target = u * ends[-1]
    block = jnp.minimum((ends[None, :] <= target[:, None]).sum(-1), len(ends) - 1)
    rest = target - jnp.where(block > 0, ends[block - 1], 0)
    inner = jnp.cumsum(blocks[block], -1)
    return block * BLOCK + jnp.minimum((inner <= rest[:, None]).sum(-1), BLOCK - 1)


def draw_pairs(train: Array, infer: Array, u: Array) -> tuple[Array, Array]:
    """Return (p_train, p_infer), each [n, k], of the tokens that u [n, k] draws from infer [n, V]."""
    token = jax.vmap(draw)(infer, u)
    return jnp.take_along_axis(train, token, -1), jnp.take_along_axis(infer, token, -1)


@partial(jax.jit, static_argnames=("per_vector", "tokens"))
def sample(seed_keys: Array, settings: Setting, active: Array, per_vector: int, tokens: int) -> Array:
    """Return p_float32 and p_rounded [2, settings, tokens] of tokens drawn from each p_rounded.

    Each vector of logits gives `per_vector` tokens. All settings see the same logits and the same
    uniform numbers: they differ by their rounding alone. Settings that are not `active` are skipped
    and return NaN, so that one program serves every choice of settings.
    Reference: hacking App. C.1, Eq. 44-45.
    """
    n = min(CHUNK, tokens // per_vector)
    rest = jnp.full((n,), -jnp.inf)

    def chunk(key: Array) -> tuple[Array, Array]:
        z = logits(key, n)
        u = jax.random.uniform(stream(key, "tokens"), (n, per_vector))
        train = probabilities(z, rest, EXACT)
        skipped = (jnp.full_like(u, jnp.nan),) * 2

        def one(item: tuple[Array, Setting]) -> tuple[Array, Array]:
            drawn = lambda: draw_pairs(train, probabilities(z, rest, item[1]), u)  # noqa: E731
            return jax.lax.cond(item[0], drawn, lambda: skipped)

        return jax.lax.map(one, (active, settings))

    pairs = jnp.stack(jax.lax.map(chunk, seed_keys))
    return jnp.moveaxis(pairs, 2, 1).reshape(2, len(active), tokens)


@jax.jit
def distributions(key: Array, chosen: Setting) -> tuple[Array, Array]:
    """Return (p_float32, p_rounded), each [250, V]: the complete distributions of a chunk of `sample`."""
    z, rest = logits(key, CHUNK), jnp.full((CHUNK,), -jnp.inf)
    return probabilities(z, rest, EXACT), probabilities(z, rest, chosen)
