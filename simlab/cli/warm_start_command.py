"""`simlab warm-start`: train an initial policy on demonstrations."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simlab.cli.output import check_out_file, one_clear_error
from simlab.core.ranges import FRACTION, POSITIVE, SEED, STEPS

if TYPE_CHECKING:
    from jax import Array
    from jaxtyping import Float

    from simlab.models.parameters import Params

EPILOG = "Example: `simlab warm-start add tiny-dense --out add-tiny-dense-0.npz`."
TaskName = Annotated[str, typer.Argument(help="Task; see `simlab list tasks`.")]
ModelName = Annotated[str, typer.Argument(help="Model preset; see `simlab list models`.")]
Out = Annotated[Path, typer.Option(help="Parameter file (.npz).")]
Steps = Annotated[int, typer.Option(help="Number of updates, each on 128 new demonstrations.")]
DemoErrorRate = Annotated[float, typer.Option(help="Probability that a demonstrated digit is wrong, 0 to 1.")]
LearningRate = Annotated[float, typer.Option(help="Learning rate of AdamW after the warm-up, above 0.")]
MinLrRatio = Annotated[
    float, typer.Option(help="Final learning rate as a fraction of the initial one, 0 to 1.")
]
Seed = Annotated[int, typer.Option(min=0, max=int(SEED.high), help="Seed of parameters and demonstrations.")]


def warm_start(
    task: TaskName,
    model: ModelName,
    out: Out,
    steps: Steps = 1200,
    demo_error_rate: DemoErrorRate = 0.05,
    learning_rate: LearningRate = 4e-3,
    min_lr_ratio: MinLrRatio = 0.1,
    seed: Seed = 0,
) -> None:
    """Train a model on demonstrations of a task and write its parameters."""
    import jax

    from simlab.core.backend import compute_on_one_thread
    from simlab.core.catalog import lookup
    from simlab.models.config import MODELS
    from simlab.tasks import TASKS
    from simlab.training.checkpoints import save_tree
    from simlab.training.optimizer import AdamW
    from simlab.training.warm_start import WarmStart, compile_warm_start

    compute_on_one_thread()  # else the policy of a seed depends on the number of cores
    with one_clear_error():
        _check_numbers(learning_rate, steps, demo_error_rate, min_lr_ratio)
        chosen, config = lookup(TASKS, task, "task")(), lookup(MODELS, model, "model")
        check_out_file(out)
    optimizer = AdamW(learning_rate=learning_rate)
    how = WarmStart(
        optimizer=optimizer, steps=steps, demo_error_rate=demo_error_rate, min_lr_ratio=min_lr_ratio
    )
    params, losses = compile_warm_start()(chosen, config, how, jax.random.key(seed))
    with one_clear_error():
        _check_finite(params, losses, learning_rate)
        save_tree(out, params)
    typer.echo(f"{out}: loss {float(losses[0]):.3f} to {float(losses[-20:].mean()):.3f} nats per token")


def _check_numbers(learning_rate: float, steps: int, demo_error_rate: float, min_lr_ratio: float) -> None:
    # A range of Typer accepts NaN.
    if not POSITIVE.low <= learning_rate <= POSITIVE.high:
        raise ValueError(f"--learning-rate must be above 0 and finite in float32, got {learning_rate}.")
    STEPS.check(steps, "--steps")
    FRACTION.check(demo_error_rate, "--demo-error-rate")
    FRACTION.check(min_lr_ratio, "--min-lr-ratio")


def _check_finite(params: "Params", losses: "Float[Array, ' steps']", learning_rate: float) -> None:
    import jax
    import numpy as np

    values = np.asarray(losses)
    broken = np.flatnonzero(~np.isfinite(values))
    if len(broken):
        problem = f"the loss of step {broken[0] + 1} is {values[broken[0]]}"
    elif all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params)):
        return
    else:
        problem = f"the parameters after step {len(values)} are not finite"
    raise ValueError(
        f"training diverged: {problem}; no file was written. Pass a --learning-rate below {learning_rate:g}."
    )
