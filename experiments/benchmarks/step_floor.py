"""Measure the arithmetic floor of a training step: its matrix products alone, at full speed."""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from simlab.models.config import TransformerConfig
from simlab.training.recipe import Recipe

SIDE_BY_SIDE = 8


class Product(NamedTuple):
    """A product [batch, rows, terms] by [batch, terms, columns]."""

    batch: int
    rows: int
    terms: int
    columns: int

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.batch * self.rows * self.terms * self.columns

    @property
    def bytes(self) -> int:
        """Bytes of the operands and the result in float32."""
        numbers = self.rows * self.terms + self.terms * self.columns + self.rows * self.columns
        return 4 * self.batch * numbers


def forward(config: TransformerConfig, sequences: int, length: int, keys: int) -> Counter[Product]:
    """Count the products of one forward pass of a dense model, without logits."""
    rows, width = sequences * length, config.hidden_size
    heads, queries = sequences * config.num_key_value_heads, config.queries_per_key * length
    layer = [
        Product(1, rows, width, sum(config.heads) * config.head_dim),
        Product(heads, queries, config.head_dim, keys),
        Product(heads, queries, keys, config.head_dim),
        Product(1, rows, config.num_attention_heads * config.head_dim, width),
        Product(1, rows, width, 2 * config.intermediate_size),
        Product(1, rows, config.intermediate_size, width),
    ]
    return Counter(layer * config.num_hidden_layers)


def head(config: TransformerConfig, positions: int) -> Counter[Product]:
    """Count the product of the logits."""
    return Counter([Product(1, positions, config.hidden_size, config.vocab_size)])


def with_backward(products: Counter[Product]) -> Counter[Product]:
    """Add the two products of the gradient of each."""
    total = Counter(products)
    for (batch, rows, terms, columns), count in products.items():
        total[Product(batch, rows, columns, terms)] += count
        total[Product(batch, terms, rows, columns)] += count
    return total


def by_stage(recipe: Recipe, prompt_length: int) -> dict[str, Counter[Product]]:
    """Count the products of every stage of a step; the prompt of a group is processed once.

    Attention is over as many keys as the caches hold.
    """
    config, length = recipe.model, recipe.task.response_length
    sequences, keys = recipe.prompts_per_step * recipe.group_size, prompt_length + length
    rollout = forward(config, recipe.prompts_per_step, prompt_length, keys)
    rollout += head(config, recipe.prompts_per_step)
    for _ in range(length - 1):
        rollout += forward(config, sequences, 1, keys) + head(config, sequences)

    def count_scoring(parts: int) -> Counter[Product]:
        prompts = forward(config, recipe.prompts_per_step // parts, prompt_length, keys - 1)
        responses = forward(config, sequences // parts, length - 1, keys - 1)
        return prompts + responses + head(config, sequences // parts * length)

    score, part = count_scoring(1), with_backward(count_scoring(recipe.minibatches))
    updates = Counter({product: recipe.minibatches * count for product, count in part.items()})
    return {"rollout": rollout, "score": score, "updates": updates, "step": rollout + score + updates}


def timed_call(product: Product) -> Callable[[], object]:
    """Return a call that makes `SIDE_BY_SIDE` independent products, in as many threads as there are cores."""
    rng = np.random.default_rng(0)

    def operand(rows: int, columns: int) -> Array:
        values = rng.standard_normal((SIDE_BY_SIDE, product.batch, rows, columns), np.float32)
        return jnp.asarray(values.squeeze(1) if product.batch == 1 else values)

    a, b = operand(product.rows, product.terms), operand(product.terms, product.columns)
    pairs = list(zip(a, b, strict=True))
    program = jax.jit(lambda pairs: [jnp.matmul(x, y) for x, y in pairs])
    return lambda: jax.block_until_ready(program(pairs))
