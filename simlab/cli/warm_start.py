"""`simlab warm-start`: train an initial policy on demonstrations."""

from pathlib import Path
from typing import Annotated

import typer

from simlab.cli.output import check_out_file, one_clear_error
from simlab.core.ranges import SEED

EPILOG = "Example: `simlab warm-start add tiny-dense --out add-tiny-dense-0.npz`."


def warm_start(
    task: Annotated[str, typer.Argument(help="Task.")],
    model: Annotated[str, typer.Argument(help="Model preset.")],
    out: Annotated[Path, typer.Option(help="File for the parameters (.npz).")],
    steps: Annotated[
        int, typer.Option(min=1, help="Number of updates, each on 128 new demonstrations.")
    ] = 1200,
    demo_error_rate: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Probability that a demonstrated digit is wrong.")
    ] = 0.05,
    learning_rate: Annotated[
        float, typer.Option(min=0.0, help="Learning rate of AdamW after the warm-up.")
    ] = 4e-3,
    min_lr_ratio: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Final learning rate as a fraction of the initial one.")
    ] = 0.1,
    seed: Annotated[
        int, typer.Option(min=0, max=int(SEED.high), help="Seed of parameters and demonstrations.")
    ] = 0,
) -> None:
    """Train a model on demonstrations of a task and write its parameters."""
    import jax

    from simlab.core.catalog import lookup
    from simlab.models.config import MODELS
    from simlab.sweeps.compile_cache import compute_on_one_thread
    from simlab.tasks import TASKS
    from simlab.training.checkpoints import save_tree
    from simlab.training.optimizer import AdamW
    from simlab.training.warm_start import WarmStart
    from simlab.training.warm_start import warm_start as train

    compute_on_one_thread()  # else the policy of a seed depends on the number of cores
    with one_clear_error():
        chosen, config = lookup(TASKS, task, "task")(), lookup(MODELS, model, "model")
        check_out_file(out)
    optimizer = AdamW(learning_rate=learning_rate)
    how = WarmStart(
        optimizer=optimizer, steps=steps, demo_error_rate=demo_error_rate, min_lr_ratio=min_lr_ratio
    )
    params, losses = jax.jit(train, static_argnums=(0, 1))(chosen, config, how, jax.random.key(seed))
    save_tree(out, params)
    typer.echo(f"{out}: loss {float(losses[0]):.3f} to {float(losses[-20:].mean()):.3f} nats per token")
