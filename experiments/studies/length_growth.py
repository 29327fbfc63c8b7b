"""Does response length grow with skill? The recurrence task under RL, from a warm start on short answers."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from simlab.core.experiment import Experiment, Run
from simlab.engines import find_pair
from simlab.models.config import MODELS, TransformerConfig
from simlab.objectives import get_objective
from simlab.tasks import TASKS
from simlab.training.loop import train
from simlab.training.optimizer import AdamW
from simlab.training.recipe import Recipe, initial_state
from simlab.training.warm_start import WarmStart, warm_start

CHUNK = 20
LEARNING_RATE = 5e-4
COLUMNS = ("reward", "response_length", "entropy", "grad_norm")


@dataclass(frozen=True)
class Size:
    """How much is run: supervised updates, then steps of RL for each seed side by side."""

    supervised: WarmStart
    steps: int
    seeds: int
    difficulty: int
    model: TransformerConfig


FULL = Size(WarmStart(steps=1000, demo_error_rate=0.02), 400, 2, 32, MODELS["tiny-dense"])
SMOKE = Size(
    replace(FULL.supervised, steps=20),
    CHUNK,
    2,
    8,
    TransformerConfig(hidden_size=32, intermediate_size=32, num_hidden_layers=1),
)


def run(run: Run) -> None:
    size = SMOKE if run.smoke else FULL
    seeds = run.seeds(range(size.seeds))
    run.configure(
        task="recurrence",
        difficulty=size.difficulty,
        supervised_steps=size.supervised.steps,
        demo_error_rate=size.supervised.demo_error_rate,
        steps=size.steps,
        learning_rate=LEARNING_RATE,
        engines="f32/f32",
        objective="grpo",
    )
    recipe = Recipe(
        engines=find_pair("f32/f32"),
        objective=get_objective("grpo"),
        optimizer=AdamW(learning_rate=LEARNING_RATE),
        task=TASKS["recurrence"](difficulty=size.difficulty),
        model=size.model,
        minibatches=2,
    )
    with run.phase("warm start"):
        start = jax.jit(warm_start, static_argnums=(0, 1))
        params, losses = start(recipe.task, recipe.model, size.supervised, jax.random.key(0))
        run.table("warm_start", [{"step": i, "loss": float(loss)} for i, loss in enumerate(losses)])
    with run.phase("reinforcement learning"):
        states = [initial_state(recipe, params, jax.random.key(seed)) for seed in seeds]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
        with run.progress("RL", size.steps // CHUNK) as advance:
            _, curves = train(recipe, stacked, size.steps, [advance], chunk=CHUNK, axes=(None, 0))
    run.table(
        "steps",
        [
            {"seed": seed, "step": step, **{name: float(curves[name][row, step]) for name in COLUMNS}}
            for row, seed in enumerate(seeds)
            for step in range(size.steps)
        ],
    )


EXPERIMENT = Experiment(
    name="length_growth",
    question="Does the response length grow while the reward does, as a schedule triggered by length needs?",
    decision_rule=(
        "Yes if in every seed both the mean response length and the mean reward of the last 40 steps are at "
        "least 1.25 times those of the first 40; no otherwise."
    ),
    minutes=4.0,
    figures=("length_growth",),
    run=run,
)
