"""Measure what the log-probabilities of all tokens cost: bytes per sampled token, and time per step.

Run `python scripts/vocabulary_columns.py`; the table in docs/objectives.md is its output.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from simlab.engines import find_pair
from simlab.models.config import MODELS
from simlab.models.parameters import init_params
from simlab.objectives import TokenBatch, resolve, token_coefficients, vocabulary_coefficients
from simlab.tasks import TASKS
from simlab.training.recipe import Recipe, initial_state
from simlab.training.step import train_step

SEQUENCES, TOKENS, REPEATS = 4, 16, 9


def milliseconds(program: Callable[..., Any], *arguments: Any) -> tuple[float, float]:
    """Return the median time of a compiled call, and its temporary memory in MB."""
    compiled = jax.jit(program).lower(*arguments).compile()
    jax.block_until_ready(compiled(*arguments))
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        times.append(1e3 * (time.perf_counter() - start))
    memory = compiled.memory_analysis()
    assert memory is not None, "this backend reports no memory of a program"
    return float(np.median(times)), memory.temp_size_in_bytes / 1e6


def batch_of(vocabulary: int) -> TokenBatch:
    """Draw two policies over a vocabulary."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(SEQUENCES, TOKENS, vocabulary)).astype(np.float32) * 3
    policy = jax.nn.log_softmax(jnp.asarray(logits))
    sampler = jax.nn.log_softmax(policy + 0.05 * jnp.asarray(rng.normal(size=logits.shape), jnp.float32))
    tokens = jnp.argmax(sampler, axis=-1)
    at = [jnp.take_along_axis(x, tokens[..., None], axis=-1)[..., 0] for x in (policy, sampler)]
    return TokenBatch(
        logp=at[0],
        logp_train=at[0],
        logp_infer=at[1],
        rewards=jnp.arange(SEQUENCES, dtype=jnp.float32) % 2,
        mask=jnp.ones((SEQUENCES, TOKENS)),
        group_size=2,
        tokens=tokens,
        logp_vocabulary=policy,
        logp_infer_vocabulary=sampler,
    )


def print_coefficients() -> None:
    """Print time and memory of the coefficients of one batch, by size of the vocabulary."""
    print("| V | column, bytes per token | top-128 pairs | `ipo`, ms | exact, ms (MB) | top-128, ms (MB) |")
    print("|---|---|---|---|---|---|")
    for vocabulary in (64, 4096, 32768, 151936):
        batch = batch_of(vocabulary)
        plain, _ = milliseconds(lambda b: token_coefficients("ipo", b), batch)
        cells = []
        for top_k in (float("inf"), 128.0):
            cost = milliseconds(
                lambda b, k=top_k: vocabulary_coefficients("ipo+score_centering", b, top_k=k), batch
            )
            cells.append("{:.1f} ({:.0f})".format(*cost))
        print(f"| {vocabulary} | {4 * vocabulary} | {8 * 128} | {plain:.2f} | {cells[0]} | {cells[1]} |")


def print_steps() -> None:
    """Print the time of a training step without and with the columns."""
    recipe = Recipe(
        engines=find_pair("f32/vllm-bf16"),
        objective=resolve("ipo"),
        task=TASKS["recurrence"](),
        model=MODELS["tiny-dense"],
    )
    params = init_params(jax.random.key(0), recipe.model)
    for name in ("ipo", "ipo+score_centering"):
        named = replace(recipe, objective=resolve(name))
        cost, memory = milliseconds(train_step, named, initial_state(named, params, jax.random.key(0)))
        print(f"step with {name}: {cost:.0f} ms, {memory:.1f} MB of temporaries")


if __name__ == "__main__":
    print_coefficients()
    print_steps()
