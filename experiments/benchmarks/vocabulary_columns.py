"""Measure memory and time of full-vocabulary log-probs, which score centering and Top-K DPPO read."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.timing import interleave, time_call
from simlab.objectives import Objective, TokenBatch, resolve, token_coefficients, vocabulary_coefficients
from simlab.studies.experiment import Experiment, ExperimentContext

SEQUENCES, TOKENS, TOP_K = 4, 16, 128
VOCABULARIES = (64, 4096, 32768, 151936)
BYTES_OF_FLOAT32, BYTES_OF_PAIR = 4, 8


def batch_of(vocabulary: int) -> TokenBatch:
    """Draw two policies over a vocabulary; the sampled tokens are the most probable ones of the sampler."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(SEQUENCES, TOKENS, vocabulary)).astype(np.float32) * 3
    policy = jax.nn.log_softmax(jnp.asarray(logits))
    noise = jnp.asarray(rng.normal(size=logits.shape), jnp.float32)
    sampler = jax.nn.log_softmax(policy + 0.05 * noise)
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


OBJECTIVES: dict[str, Objective] = {
    "ipo": resolve("ipo"),
    "exact centering": resolve("ipo+score_centering"),
    "top-128 centering": resolve("ipo+score_centering", top_k=TOP_K),
    "top-128 DPPO": resolve("dppo_tv", divergence_top_k=TOP_K),
}


def coefficients(objective: Objective) -> Callable[[TokenBatch], jax.Array]:
    """Return the function of a batch that is timed."""
    return partial(token_coefficients if objective.centering is None else vocabulary_coefficients, objective)


def column_bytes(name: str, vocabulary: int) -> int:
    """Return bytes per sampled token that one engine sends: a number per token, or a pair (id, number)."""
    if name == "ipo":
        return BYTES_OF_FLOAT32
    entries = min(TOP_K, vocabulary)
    return BYTES_OF_PAIR * entries if "top" in name else BYTES_OF_FLOAT32 * vocabulary


def run(run: ExperimentContext) -> None:
    """Write the table `columns`: bytes, temporary memory and median time per vocabulary and objective."""
    (seed,) = run.seeds([0])
    rounds = 2 if run.smoke else 15
    sizes = VOCABULARIES[:1] if run.smoke else VOCABULARIES
    run.configure(sequences=SEQUENCES, tokens=TOKENS, top_k=TOP_K, vocabularies=list(sizes), rounds=rounds)
    rows = []
    for vocabulary in sizes:
        batch = batch_of(vocabulary)
        programs = [jax.jit(coefficients(each)).lower(batch).compile() for each in OBJECTIVES.values()]
        calls = [lambda p=program, b=batch: jax.block_until_ready(p(b)) for program in programs]
        seconds = np.median(interleave(run, calls, time_call, rounds, seed, f"rounds, {vocabulary}"), axis=0)
        for name, program, median in zip(OBJECTIVES, programs, seconds, strict=True):
            memory = program.memory_analysis()
            assert memory is not None, "this backend reports no memory of a program"
            row = {"vocabulary": vocabulary, "objective": name}
            row["column_bytes"] = column_bytes(name, vocabulary)
            rows.append(row | {"temporary_bytes": memory.temp_size_in_bytes, "seconds": float(median)})
    run.table("columns", rows)


EXPERIMENT = Experiment(
    name="bench_vocabulary",
    question="What does the column of all log-probabilities cost, in full and as the top 128?",
    decision_rule="bytes per token and temporary memory are exact; times are medians of interleaved calls",
    run=run,
    minutes=1.0,
    kind="measurement",
)
