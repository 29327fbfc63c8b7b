"""Number of runs per batch: a constant on a CPU; on a GPU as many as fit in its memory."""

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from simlab.models.parameters import shapes_of
from simlab.training.recipe import Recipe, state_shapes

# More runs per batch amortize the cost of small operations; a batch that is not full costs as much as a full
# one. The number is part of every key.
RUNS_PER_BATCH = {"cpu": 4}
# Four arms of 24 initial policies.
RUNS_PER_BATCH_ON_GPU = 96
SAFETY = 1.5
"""Memory that is kept free per byte that a batch is expected to need: fragments and temporary copies."""


def default_runs_per_batch(recipes: Iterable[Recipe] = ()) -> int:
    """Return the default number of runs per batch on this kind of device.

    On a GPU it is 96, or as many runs of the largest of `recipes` as fit in memory. A CPU ignores `recipes`.
    """
    if (fixed := RUNS_PER_BATCH.get(jax.default_backend())) is not None:
        return fixed
    needed = max(map(bytes_per_run, recipes), default=0.0)
    return fit_runs(needed, _device_memory())


def fit_runs(bytes_per_run: float, memory: float | None) -> int:
    """Return how many runs fit into `memory` bytes, from 1 to 96; 96 if the memory is not known."""
    if not memory or not bytes_per_run:
        return RUNS_PER_BATCH_ON_GPU
    return int(np.clip(memory / (SAFETY * bytes_per_run), 1, RUNS_PER_BATCH_ON_GPU))


def bytes_per_run(recipe: Recipe) -> float:
    """Return the approximate number of bytes that an update of one run of a batch needs on a GPU.

    These are its state before and after, a gradient, and the float32 activations of a minibatch: ten vectors
    of the hidden size and three of the feed-forward layers per token and layer, attention scores in both
    passes, and three arrays of logits. `tests/engines_real/test_gpu_kernels.py` compares with XLA.
    """
    model = recipe.model
    params, state = _size(shapes_of(model)), _size(state_shapes(recipe))
    length = recipe.task.prompt_length + recipe.task.response_length
    tokens = recipe.prompts_per_step * recipe.group_size * length / recipe.minibatches
    inner = model.num_experts * model.moe_intermediate_size or model.intermediate_size
    layer = 10 * model.hidden_size + 3 * inner + 2 * model.num_attention_heads * length
    networks = 1 if recipe.critic is None else 2
    activations = 4.0 * tokens * (model.num_hidden_layers * layer + 3 * model.vocab_size) * networks
    return 2 * state + params + activations


def _size(tree: Any) -> float:
    leaves = [
        leaf for leaf in jax.tree.leaves(tree) if not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    ]
    return float(sum(leaf.size * leaf.dtype.itemsize for leaf in leaves))


def _device_memory() -> float | None:
    """Return the bytes that JAX may use on the device; None if the platform does not report it."""
    return (jax.devices()[0].memory_stats() or {}).get("bytes_limit")
