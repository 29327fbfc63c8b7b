"""What it costs that objectives are a sweep axis: `lax.switch` over all presets against a model's update.

The model is a stand-in: the forward and backward pass of a bare transformer of the flagship's size (width 48,
2 layers, 128 sequences of 22 tokens), without optimizer, rollout and number formats. All of these make a real
step slower, so the share of the switch is an upper bound.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from simlab.core.experiment import Experiment, Run
from simlab.objectives import OBJECTIVES, TokenBatch, switch_coefficients, token_coefficients

SEQUENCES, TOKENS, GROUP_SIZE = 128, 22, 16
WIDTH, LAYERS, HEADS, HIDDEN, VOCABULARY = 48, 2, 4, 192, 64
NAMES = tuple(OBJECTIVES)
Case = tuple[Callable[..., Any], tuple]


def make_batch(seed: int) -> TokenBatch:
    """A rollout batch of the flagship's size with a small mismatch."""
    rng = np.random.default_rng(seed)
    shape = (SEQUENCES, TOKENS)
    logp_train = -1 - rng.exponential(1.0, shape)
    arrays = [
        logp_train + 0.05 * rng.normal(size=shape),
        logp_train,
        logp_train + 0.1 * rng.normal(size=shape),
    ]
    return TokenBatch(
        *(jnp.asarray(x, jnp.float32) for x in arrays),
        rewards=jnp.asarray(rng.integers(0, 2, SEQUENCES), jnp.float32),
        mask=jnp.asarray(np.arange(TOKENS) < rng.integers(4, TOKENS + 1, SEQUENCES)[:, None]),
        group_size=GROUP_SIZE,
        key=jax.random.key(seed),
        values=jnp.asarray(rng.normal(0.5, 0.2, shape), jnp.float32),
    )


def make_weights(seed: int) -> list[jax.Array]:
    """Matrices of the stand-in: embedding, then per layer q, k, v, o, up and down."""
    rng = np.random.default_rng(seed)
    shapes = [(VOCABULARY, WIDTH)]
    shapes += LAYERS * ([(WIDTH, WIDTH)] * 4 + [(WIDTH, HIDDEN), (HIDDEN, WIDTH)])
    return [jnp.asarray(rng.normal(size=shape) * WIDTH**-0.5, jnp.float32) for shape in shapes]


def standin_logp(weights: list[jax.Array], tokens: jax.Array) -> jax.Array:
    """log-probability of each token [B, T] under the stand-in."""
    embedding, layers = weights[0], weights[1:]
    x = embedding[tokens]
    causal = jnp.tril(jnp.ones((TOKENS, TOKENS), bool))[None, None]
    for q, k, v, o, up, down in zip(*(layers[i::6] for i in range(6)), strict=True):
        heads = [(x @ w).reshape(SEQUENCES, TOKENS, HEADS, -1) for w in (q, k, v)]
        scores = jnp.einsum("bthd,bshd->bhts", heads[0], heads[1])
        attention = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
        x = x + jnp.einsum("bhts,bshd->bthd", attention, heads[2]).reshape(x.shape) @ o
        x = x + jax.nn.silu(x @ up) @ down
        x = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)
    logp = jax.nn.log_softmax(x @ embedding.T)
    return jnp.take_along_axis(logp, tokens[..., None], axis=-1)[..., 0]


def standin_gradient(weights: list[jax.Array], tokens: jax.Array, coefficients: jax.Array) -> list[jax.Array]:
    """The backward pass of `sum(c * logp)`."""
    return jax.grad(lambda w: jnp.sum(coefficients * standin_logp(w, tokens)))(weights)


def cases(runs: int) -> dict[str, Case]:
    """Programs by name; those of many runs are vmapped over the runs."""
    batch, weights = make_batch(0), make_weights(0)
    tokens = jnp.asarray(np.random.default_rng(1).integers(0, VOCABULARY, (SEQUENCES, TOKENS)))
    coefficients = token_coefficients("grpo", batch)

    def stack(tree: Any) -> Any:
        return jax.tree.map(lambda x: jnp.stack([x] * runs), tree)

    each = jnp.arange(runs) % len(NAMES)
    return {
        "model, one run": (standin_gradient, (weights, tokens, coefficients)),
        "grpo, one run": (lambda b: token_coefficients("grpo", b), (batch,)),
        "switch, one run": (switch_coefficients, (jnp.int32(3), batch)),
        "model, all runs": (jax.vmap(standin_gradient), stack((weights, tokens, coefficients))),
        "grpo, all runs": (jax.vmap(lambda b: token_coefficients("grpo", b)), (stack(batch),)),
        "switch, all runs": (jax.vmap(switch_coefficients), (each, stack(batch))),
    }


def measure(program: Callable[..., Any], arguments: tuple, repeats: int) -> dict[str, float]:
    """Seconds to compile, and milliseconds per call: median and quartiles."""
    start = time.perf_counter()
    compiled = jax.jit(program).lower(*arguments).compile()
    compile_seconds = time.perf_counter() - start
    jax.block_until_ready(compiled(*arguments))
    calls = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        calls.append(1e3 * (time.perf_counter() - start))
    low, median, high = np.quantile(calls, [0.25, 0.5, 0.75])
    return {"compile_s": compile_seconds, "ms": median, "ms_low": low, "ms_high": high}


def run(run: Run) -> None:
    runs, repeats = (2, 3) if run.smoke else (len(NAMES), 50)
    run.configure(presets=len(NAMES), runs=runs, repeats=repeats, sequences=SEQUENCES, tokens=TOKENS)
    rows = []
    for name, (program, arguments) in run.track(cases(runs).items(), "programs"):
        rows.append({"program": name, **measure(program, arguments, repeats)})
    for row in rows:
        kind = row["program"].split(", ")[1]
        model = next(other["ms"] for other in rows if other["program"] == f"model, {kind}")
        row["share_of_model"] = row["ms"] / model
    run.table("timings", rows)


EXPERIMENT = Experiment(
    name="bench_objectives",
    question="What does it cost to carry all objectives in one program, relative to the model's update?",
    decision_rule="Cheap if the switch over all presets takes less than a tenth of the stand-in's time, "
    "for one run and for one run per preset under vmap.",
    run=run,
    minutes=1.0,
)
