"""`simlab export`: write a simlab run as a verl launch script or a Slurm job, or read a verl config."""

import sys
import tomllib
from pathlib import Path
from typing import Annotated

import typer

from simlab.cli.output import one_clear_error

LONGEST_HOURS = 8760.0
"""A year."""
app = typer.Typer(
    no_args_is_help=True,
    help="Export a run to verl or Slurm, or import the config of a verl run.",
    epilog="Example: `simlab export verl examples/to_verl.toml --arm ACRL > run.sh`",
)


@app.command("verl", epilog="Example: `simlab export verl examples/to_verl.toml --arm ACRL > run.sh`")
def verl(
    run: Annotated[
        Path, typer.Argument(help="TOML file of a sweep or of a run, or the result directory of a sweep.")
    ],
    arm: Annotated[str | None, typer.Option(help="Arm of the sweep; required if it has several.")] = None,
    backend: Annotated[str, typer.Option(help="verl backend: megatron or fsdp.")] = "megatron",
    dump: Annotated[
        str | None, typer.Option(help="Directory for token-level dumps, which `simlab diagnose` reads.")
    ] = None,
) -> None:
    """Print a launch script for Qwen3-30B-A3B on DAPO-Math-17k.

    Rejects a run with a setting that verl lacks, and names the setting."""
    from simlab.integrations.export import verl_run, verl_script
    from simlab.integrations.export.source import read_run

    with one_clear_error():
        name, config = read_run(run, arm)
        typer.echo(verl_script(verl_run(config, backend), name, dump), nl=False)


@app.command("lab", epilog="Example: `simlab export lab outputs/.hydra/config.yaml > run.toml`")
def lab(
    config: Annotated[
        Path,
        typer.Argument(
            help="YAML config of a verl run, such as Hydra's config.yaml, or - for standard input."
        ),
    ],
) -> None:
    """Print the nearest simlab run as TOML, with the differences as comments."""
    from simlab.integrations.export import nearest_config, to_toml

    with one_clear_error():
        pasted = str(config) == "-"
        if not (pasted or config.is_file()):
            raise FileNotFoundError(f"no file {config}")
        try:
            nearest = nearest_config(sys.stdin.read() if pasted else config.read_text())
        except (ImportError, ValueError) as error:
            where = "" if isinstance(error, ImportError) else f"{'standard input' if pasted else config}: "
            raise ValueError(f"{where}{error}") from error
        text = to_toml(nearest, "pasted" if pasted else config.stem)
        tomllib.loads(text)
        for difference in nearest.differences:
            typer.echo(f"simlab: differs: {difference}", err=True)
        typer.echo(text, nl=False)


@app.command("slurm", epilog="Example: `simlab export slurm examples/flagship.toml --hours 4 > job.sh`")
def slurm(
    sweep: Annotated[Path, typer.Argument(help="TOML file of a sweep.")],
    hours: Annotated[
        float, typer.Option(min=0.01, max=LONGEST_HOURS, help="Time limit of each job in hours.")
    ] = 12.0,
    parts: Annotated[int, typer.Option(min=1, help="Number of jobs, one after another.")] = 4,
    cpus: Annotated[int, typer.Option(help="CPU cores of each job.")] = 16,
    gpus: Annotated[int, typer.Option(help="GPUs of each job.")] = 0,
    partition: Annotated[str | None, typer.Option(help="Slurm partition (--partition).")] = None,
    account: Annotated[str | None, typer.Option(help="Slurm account (--account).")] = None,
    setup: Annotated[
        str | None,
        typer.Option(help="Shell command before the sweep, such as 'source /path/.venv/bin/activate'."),
    ] = None,
) -> None:
    """Print a batch script of jobs that compute a sweep; each job resumes the one before."""
    from simlab.integrations.export import slurm_script
    from simlab.sweeps.file import read_file
    from simlab.sweeps.sweep import prepare

    with one_clear_error():
        described = read_file(sweep)
        # A bad sweep file must fail here, not after hours in the queue.
        prepare(described.base, described.grid, Path("runs") / described.name, described.runs_per_batch)
        text = slurm_script(
            sweep, described.name, hours=hours, parts=parts, cpus=cpus, gpus=gpus,
            partition=partition, account=account, setup=setup,
        )  # fmt: skip
        typer.echo(text, nl=False)
