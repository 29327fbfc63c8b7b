"""`simlab sweep`: compute a grid of runs that a TOML file describes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simlab.cli.output import Yes, one_clear_error

if TYPE_CHECKING:
    from simlab.sweeps import SweepResult
    from simlab.sweeps.file import Described

EPILOG = "Example: `simlab sweep examples/first_sweep.toml --out runs/first_sweep`; call again to resume."

Config = Annotated[Path, typer.Argument(help="TOML file with the tables base and over; see examples/.")]
Out = Annotated[Path | None, typer.Option(help="Result directory (default runs/NAME).")]
Workers = Annotated[
    int | None,
    typer.Option(min=0, help="Number of worker processes; 0: none (default one per core, or per GPU)."),
]
Executor = Annotated[str, typer.Option(help="Executor: local, or ray (needs 'simlab[ray]').")]
Address = Annotated[
    str | None,
    typer.Option(
        help="Address of the Ray head, such as host:6379, or local (default: the head on this machine)."
    ),
]
RunsPerBatch = Annotated[
    int | None, typer.Option(min=1, help="Runs computed in parallel (default 4 on a CPU, 96 on a GPU).")
]
CheckpointSeconds = Annotated[float, typer.Option(min=0.0, help="Seconds between checkpoints of a run.")]
Plan = Annotated[bool, typer.Option("--plan", help="Plan only, without runs.")]
Watch = Annotated[bool, typer.Option("--watch", help="Curves during the sweep, redrawn in OUT/curves.png.")]


def sweep(
    config: Config,
    out: Out = None,
    workers: Workers = None,
    executor: Executor = "local",
    address: Address = None,
    runs_per_batch: RunsPerBatch = None,
    checkpoint: CheckpointSeconds = 30.0,
    plan: Plan = False,
    watch: Watch = False,
    yes: Yes = False,
) -> None:
    """Compute the runs of a grid that the result directory lacks.

    The command first prints the numbers of runs, compiled functions and steps, and the expected time. A
    killed sweep resumes when the command is called again.

    A field is named by its path, `optimizer.learning_rate`, or by a short name: `learning_rate`, `clip_low`,
    `clip_high`, `infer_format`, `infer_mantissa_bits`, `infer_rounding`, `response_length`. User-defined
    records are named `mymodule:name`; simlab also imports modules from the directory of the file.
    """
    from simlab.core.catalog import lookup
    from simlab.sweeps.file import read_file
    from simlab.sweeps.sweep import EXECUTORS, prepare

    with one_clear_error():
        lookup(EXECUTORS, executor, "executor")
        if address is not None and executor != "ray":
            raise ValueError(f"--address must be given with --executor ray only, got --executor {executor}.")
        described = read_file(config)
        folder = out or Path("runs") / described.name
        chosen = runs_per_batch or described.runs_per_batch
        sweep_plan, _ = prepare(described.base, described.grid, folder, chosen)
    if plan:
        typer.echo(f"{described.name}: {sweep_plan.describe()}")
        return
    options = {"runs_per_batch": chosen, "workers": workers, "executor": executor, "address": address}
    result = _compute(described, folder, **options, yes=yes, watch=watch, checkpoint_seconds=checkpoint)
    typer.echo(f"results: {folder} (runs, steps, vectors; {result.manifest['timings']['total']:.1f} s)")


def _compute(described: "Described", folder: Path, **options: Any) -> "SweepResult":
    """Return the result of the sweep; exit with 1 where it was stopped, and with 2 where it failed."""
    from simlab.sweeps import sweep as compute
    from simlab.sweeps.local import StoppedError, WorkerError
    from simlab.sweeps.ray_executor import ClusterError
    from simlab.sweeps.result_cache import DamagedError

    try:
        return compute(described.base, described.grid, folder, name=described.name, **options)
    except StoppedError as stopped:
        typer.echo(f"simlab: {stopped}", err=True)
        raise typer.Exit(1) from stopped
    except (OSError, DamagedError, ClusterError, WorkerError) as error:
        typer.secho(f"simlab: {error}; finished runs are saved: call again to resume", err=True, fg="red")
        raise typer.Exit(2) from error
