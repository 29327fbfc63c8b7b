"""`simlab sweep`: compute a grid of runs that a TOML file describes."""

from pathlib import Path
from typing import Annotated

import typer

from simlab.cli.output import one_clear_error

EPILOG = "Example: `simlab sweep examples/first_sweep.toml --out runs/first_sweep`; call again to resume."


def sweep(
    config: Annotated[Path, typer.Argument(help="TOML file: tables base and over; see examples/.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the sweep; default runs/NAME.")] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Worker processes; 0: none (default one per core, or per GPU)."),
    ] = None,
    executor: Annotated[str, typer.Option(help="Executor: local, or ray (needs 'simlab[ray]').")] = "local",
    address: Annotated[
        str | None,
        typer.Option(help="Ray head, host:6379, or local (default the head on this machine)."),
    ] = None,
    runs_per_batch: Annotated[
        int | None,
        typer.Option(min=1, help="Runs computed in parallel (default 4 on a CPU, 96 on a GPU)."),
    ] = None,
    checkpoint: Annotated[float, typer.Option(min=0.0, help="Seconds between checkpoints of a run.")] = 30.0,
    plan: Annotated[bool, typer.Option("--plan", help="Print the plan and compute nothing.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Redraw curves in OUT/curves.png.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Start long runs without confirmation.")] = False,
) -> None:
    """Compute every run of a grid that the folder does not contain yet.

    Prints the numbers of runs, compiled functions and steps and the expected time first. A killed sweep
    resumes when the command is called again.

    A field is named by its path, `optimizer.learning_rate`, or by a short name: `learning_rate`, `clip_low`,
    `clip_high`, `infer_format`, `infer_mantissa_bits`, `infer_rounding`, `response_length`. Own records are
    named `mymodule:name`; the module is found in the file's folder.
    """
    from simlab.core.catalog import lookup
    from simlab.sweeps import sweep as compute
    from simlab.sweeps.file import read_file
    from simlab.sweeps.local import StoppedError, WorkerError
    from simlab.sweeps.plan import default_runs_per_batch
    from simlab.sweeps.ray_executor import ClusterError
    from simlab.sweeps.result_cache import DamagedError
    from simlab.sweeps.sweep import EXECUTORS, prepare

    with one_clear_error():
        lookup(EXECUTORS, executor, "executor")
        if address is not None and executor != "ray":
            raise ValueError(f"--address must be given with --executor ray only, got --executor {executor}.")
        described = read_file(config)
        folder = out or Path("runs") / described.name
        chosen = runs_per_batch or described.runs_per_batch
        sweep_plan, _ = prepare(described.base, described.grid, folder, chosen or default_runs_per_batch())
    if plan:
        typer.echo(f"{described.name}: {sweep_plan.describe()}")
        return
    try:
        result = compute(
            described.base,
            described.grid,
            folder,
            name=described.name,
            runs_per_batch=chosen,
            workers=workers,
            executor=executor,
            address=address,
            yes=yes,
            watch=watch,
            checkpoint_seconds=checkpoint,
        )
    except StoppedError as stopped:
        typer.echo(f"simlab: {stopped}", err=True)
        raise typer.Exit(1) from stopped
    except (OSError, DamagedError, ClusterError, WorkerError) as error:
        typer.secho(f"simlab: {error}; finished runs are saved: call again to resume", err=True, fg="red")
        raise typer.Exit(2) from error
    typer.echo(f"results: {folder} (runs, steps, vectors; {result.manifest['timings']['total']:.1f} s)")
    for line in result.problems():
        typer.echo(line)
