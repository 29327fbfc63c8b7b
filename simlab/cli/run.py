"""`simlab run`: run an experiment and write its result directory."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simlab.cli.output import Json, Yes, check_writable, one_clear_error, print_json

if TYPE_CHECKING:
    from simlab.core.experiment import Experiment
    from simlab.core.results import Results

LONG_MINUTES = 5.0
EPILOG = (
    "Example: `simlab run softmax --smoke --out /tmp/softmax`, `simlab run lr_dynamics --explain`, "
    "or `simlab run moe_dynamics --resume-from experiments/results/moe_dynamics --no-futility`. "
    "Names of experiments: `simlab list experiments`."
)


def run(
    experiment: Annotated[str, typer.Argument(help="Name of the experiment.")],
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Tiny version that takes seconds, or minutes for benchmarks.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Result directory (default runs/EXPERIMENT).")] = None,
    resume_from: Annotated[
        Path | None,
        typer.Option(
            help="Result directory to resume from, also of another experiment with shared arms. Runs only "
            "missing arms and seeds."
        ),
    ] = None,
    no_futility: Annotated[
        bool,
        typer.Option(
            "--no-futility",
            help="All initial policies for undecided claims, instead of stopping for futility.",
        ),
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Plan only: arms, claims, criteria, power and cost.")
    ] = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Run an experiment and write its tables and manifest.

    Before an experiment of more than 5 minutes, the command prints the plan. On a terminal it waits for
    confirmation.
    """
    from simlab.studies.loading import load_experiment

    with one_clear_error():
        chosen = load_experiment(experiment)
        _check_options(chosen, json and not explain, no_futility)
        if explain:
            _print_plan(chosen, json)
            return
        folder, resumed = _find_folders(chosen, out, resume_from, smoke)
    expected = "seconds, or a minute or two" if smoke else f"about {chosen.minutes:g} min on two cores"
    if not smoke and chosen.minutes > LONG_MINUTES:
        _confirm_plan(chosen, expected, yes)
    typer.echo(f"{chosen.name}: {chosen.question} ({expected})", err=True)
    _execute(chosen, folder, smoke, resumed, stops_for_futility=not no_futility)


def _check_options(experiment: "Experiment", has_lone_json: bool, no_futility: bool) -> None:
    if has_lone_json:
        raise ValueError("--json needs --explain.")
    if no_futility and not experiment.is_sequential:
        raise ValueError(f"--no-futility needs an experiment with interim analyses, got {experiment.name}.")


def _find_folders(
    experiment: "Experiment", out: Path | None, resume_from: Path | None, smoke: bool
) -> "tuple[Path, Results | None]":
    """Return the result directory, which can be written, and the earlier result to resume from."""
    from simlab.core.experiment import find_resumable
    from simlab.core.paths import default_out

    folder = out or default_out(experiment.name, smoke)
    resumed = None if resume_from is None else find_resumable(experiment, resume_from, folder, smoke)
    check_writable(folder)
    return folder, resumed


def _confirm_plan(experiment: "Experiment", expected: str, yes: bool) -> None:
    """Print the plan of a long experiment; wait for confirmation on a terminal."""
    _print_plan(experiment, False)
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Run {experiment.name}, {expected}?", abort=True)


def _execute(
    experiment: "Experiment",
    folder: Path,
    smoke: bool,
    resumed: "Results | None",
    *,
    stops_for_futility: bool,
) -> None:
    """Run the experiment; print where its results are, and how its figures are drawn."""
    from simlab.core.experiment import execute

    results = execute(experiment, folder, smoke, resumed, stops_for_futility=stops_for_futility)
    timings = results.manifest["timings"]
    computing = timings.get("sweep computing", 0.0)
    cached = f"; computing the runs, cached ones too, took {computing / 60:.1f} min" if computing else ""
    typer.echo(f"results: {folder} ({', '.join(results.table_names)}; {timings['total']:.1f} s{cached})")
    if experiment.figures:
        typer.echo(f"figures: simlab figures {' '.join(experiment.figures)} --results {folder}")


def _print_plan(experiment: "Experiment", json: bool) -> None:
    from simlab.studies.preview import format_preview, preview

    plan = preview(experiment)
    if json:
        print_json(plan)
    else:
        typer.echo(format_preview(plan))
