"""Score prompts and responses in one pass on a GPU, which needs half of the kernels.

On a CPU, prompts are read first, and their caches are repeated for the responses. On a GPU the G responses to
a prompt and, last, the prompt itself are the rows of a set, and all rows are padded to one width.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from simlab.core.arrays import AnyArray
from simlab.core.backend import is_gpu_backend
from simlab.engines import Engine, Linear, Site
from simlab.formats import Scaling
from simlab.models.config import TransformerConfig

LARGEST_PADDING = 1.5
"""Tokens of the padded rows, at most, over those of prompts and responses."""


class PromptRows(NamedTuple):
    """Shapes of sets of `group_size` rows of responses [R] and one of their prompt [P]."""

    group_size: int
    prompt_length: int
    response_length: int

    @property
    def width(self) -> int:
        """Tokens of a padded row."""
        return max(self.prompt_length, self.response_length)

    @property
    def length(self) -> int:
        """Positions of a cache: those of a prompt, then those of a row."""
        return self.prompt_length + self.width

    def fits(self, config: TransformerConfig, engine: Engine) -> bool:
        """Return whether the device is a GPU, and one pass computes what two do at a similar cost."""
        tokens = self.prompt_length + self.group_size * self.response_length
        is_small = (self.group_size + 1) * self.width <= LARGEST_PADDING * tokens
        has_both = self.group_size > 1 and self.response_length > 0
        return (
            is_gpu_backend() and has_both and is_small and not config.num_experts and _rounds_by_token(engine)
        )

    def join(self, prompts: AnyArray, responses: AnyArray) -> Array:
        """Return the rows [N (G + 1), W] of prompts [N G, P] and responses [N G, R]."""
        first = _pad(prompts[:: self.group_size, None], self.width)
        own = _pad(responses, self.width).reshape(-1, self.group_size, self.width)
        return jnp.concatenate([own, first], axis=1).reshape(-1, self.width)

    def split(self, x: Float[AnyArray, "B W D"]) -> Float[Array, "NG R1 D"]:
        """Return values [N G, 1 + R, D] from the last token of a prompt on, of values of the rows."""
        sets = x.reshape(-1, self.group_size + 1, *x.shape[1:])
        own = sets[:, :-1, : self.response_length]
        first = sets[:, -1:, self.prompt_length - 1 : self.prompt_length]
        first = jnp.broadcast_to(first, (*own.shape[:2], *first.shape[2:]))
        joined = jnp.concatenate([first, own], axis=2)
        return joined.reshape(-1, *joined.shape[2:])

    def put_behind_prompt(self, x: Float[AnyArray, "B W H D"]) -> Float[Array, "B S H D"]:
        """Return keys or values [B, W, H, D] of the rows, each behind those of its prompt."""
        sets = x.reshape(-1, self.group_size + 1, *x.shape[1:])
        first = sets[:, -1:, : self.prompt_length]
        first = jnp.broadcast_to(first, (*sets.shape[:2], *first.shape[2:]))
        joined = jnp.concatenate([first, sets], axis=2)
        return joined.reshape(-1, *joined.shape[2:])

    def select(self, prompt: np.ndarray, response: np.ndarray, count: int) -> Array:
        """Return `prompt` [...] for the rows of prompts and `response` [...] for the others, [count, ...]."""
        is_prompt = jnp.arange(count) % (self.group_size + 1) == self.group_size
        is_prompt = is_prompt.reshape(-1, *[1] * prompt.ndim)
        return jnp.where(is_prompt, jnp.asarray(prompt)[None], jnp.asarray(response)[None])

    def visible(self, count: int) -> Bool[Array, "B W S"]:
        """Return which positions of its cache each token of `count` rows sees."""
        index = np.arange(self.length)
        row = np.arange(self.width)[:, None]
        prompt = (index <= row) & (index < self.prompt_length)
        # What follows a prompt in its row sees all of it, since every query must see a key.
        return self.select(prompt, index <= row + self.prompt_length, count)


def _pad(tokens: AnyArray, width: int) -> Array:
    return jnp.pad(tokens, [(0, 0)] * (tokens.ndim - 1) + [(0, width - tokens.shape[-1])])


def _rounds_by_token(engine: Engine) -> bool:
    """Return whether no rounding of activations depends on other tokens, among which padding would count."""
    sites = jax.tree_util.tree_leaves_with_path(engine, is_leaf=lambda node: isinstance(node, Site))
    products = jax.tree.leaves(engine, is_leaf=lambda node: isinstance(node, Linear))
    if any(isinstance(each, Linear) and each.backward == "quantized" for each in products):
        return False
    return all(
        _scales_by_token(site.scaling)
        for path, site in sites
        if isinstance(site, Site)
        and site.scaling is not None
        and jax.tree_util.keystr(path[-1:]) not in (".weights", ".dequantized")
    )


def _scales_by_token(scaling: Scaling) -> bool:
    is_in_token = scaling.granularity == "token" or (
        scaling.granularity == "block" and isinstance(scaling.block, int) and scaling.axis == -1
    )
    return scaling.granularity == "none" or (is_in_token and scaling.scale_format != "e4m3")
