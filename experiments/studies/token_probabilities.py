"""Probabilities of sampled tokens under both engines, early and late in a run, as in *hacking* Fig. 3.

Every run samples the rollout of its next step. The correlation is over all tokens; the table holds a random
sample of them.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from experiments.arms import chains
from experiments.arms.settings import on_chains
from experiments.studies.repeated_runs import start_runs
from experiments.studies.runs import CHUNK, block_specs, policy_folder
from simlab.studies.arms import Arm
from simlab.studies.experiment import Experiment, ExperimentContext
from simlab.training.diagnostics import DiagnosticContext
from simlab.training.loop import Chunk, train
from simlab.training.recipe import Recipe, TrainState

SHOWN = tuple(on_chains(arm) for arm in (chains.TIS, chains.NONE, chains.BF16))
EARLY = 2 * CHUNK
"""The step of the paper's first panel; the second one is the end of the run."""
STORED = 2000  # tokens per arm and step
Measure = Callable[[TrainState], dict[str, Array]]


def run(run: ExperimentContext) -> None:
    """Train the arms from the policies of the first block; write the tables `tokens` and `correlations`."""
    tokens: list[dict[str, Any]] = []
    correlations: list[dict[str, Any]] = []
    seeds: set[int] = set()
    for arm in SHOWN:
        wanted = block_specs(arm, 0, run.smoke)
        recipe, shared, states = start_runs(wanted, policy_folder(run))
        seeds |= {spec.seed for spec in wanted}
        steps, measure = wanted[0].changes["steps"], build_measure(recipe)

        def record(chunk: Chunk, arm: Arm = arm, steps: int = steps, measure: Measure = measure) -> None:
            if chunk.step not in (EARLY, steps):
                return
            seen = {name: np.asarray(values) for name, values in measure(chunk.state).items()}
            place = {"arm": arm.id, "step": chunk.step}
            correlations.append(place | correlate(seen))
            tokens.extend(place | row for row in draw_tokens(seen))

        with run.progress(arm.id, steps, CHUNK) as advance:
            train(shared, states, steps, [record, advance], chunk=CHUNK, axes=(None, 0))
    run.table("tokens", tokens)
    run.table("correlations", correlations)
    run.configure(stored=STORED)
    run.seeds(sorted(seeds))


def build_measure(recipe: Recipe) -> Measure:
    """Return the function that samples a step of stacked runs: mask and probabilities, each [runs, B, T]."""

    def measure(state: TrainState) -> dict[str, Array]:
        batch = DiagnosticContext(recipe, state).batch
        sides = {"pi_train": batch.logp_train, "pi_infer": batch.logp_infer}
        return {"mask": batch.mask, **{name: jnp.exp(logp) for name, logp in sides.items()}}

    return jax.jit(jax.vmap(measure))


def correlate(seen: dict[str, np.ndarray]) -> dict[str, float]:
    """Return Pearson's correlation of the probabilities of all tokens of all runs, and their number."""
    train, infer = (seen[name][seen["mask"]].astype(np.float64) for name in ("pi_train", "pi_infer"))
    return {"pcc": float(np.corrcoef(train, infer)[0, 1]), "tokens": len(train)}


def draw_tokens(seen: dict[str, np.ndarray]) -> list[dict[str, int | float]]:
    """Return the probabilities of up to `STORED` tokens, a row each."""
    runs, *where = np.nonzero(seen["mask"])
    chosen = np.random.default_rng(0).permutation(len(runs))[:STORED]
    places = tuple(axis[chosen] for axis in (runs, *where))
    pairs = zip(runs[chosen], seen["pi_train"][places], seen["pi_infer"][places], strict=True)
    return [{"run": int(n), "pi_train": float(train), "pi_infer": float(infer)} for n, train, infer in pairs]


EXPERIMENT = Experiment(
    name="token_probabilities",
    question="Do the engines agree about the probabilities of sampled tokens, early and late in a run?",
    decision_rule="Measured, not judged: the change of the correlation is claim H8 of `hacking_dynamics`.",
    run=run,
    minutes=8.0,
    on_one_thread=True,
)
