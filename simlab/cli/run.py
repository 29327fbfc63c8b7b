"""`simlab run`: run an experiment and write its result directory."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simlab.cli.output import Json, Yes, check_writable, one_clear_error, print_json

if TYPE_CHECKING:
    from simlab.core.results import Results
    from simlab.studies.experiment import Experiment

LONG_MINUTES = 5.0
EPILOG = (
    "Example: `simlab run softmax --smoke --out /tmp/softmax`, `simlab run bench_step bench_compile`, "
    "`simlab run lr_dynamics --explain`, "
    "or `simlab run moe_dynamics --resume-from experiments/results/moe_dynamics --no-futility`. "
    "Names of experiments: `simlab list experiments`."
)


def run(
    experiments: Annotated[
        list[str], typer.Argument(help="Names of experiments, which run one after another.")
    ],
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Tiny version that takes seconds, or minutes for benchmarks.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Result directory of a single experiment (default runs/EXPERIMENT).")
    ] = None,
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
    """Run experiments and write their tables and manifests.

    Before an experiment of more than 5 minutes, the command prints the plan. On a terminal it waits for
    confirmation.
    """
    from simlab.core.backend import require_one_thread
    from simlab.studies.loading import load_experiment

    with one_clear_error():
        chosen = [load_experiment(name) for name in dict.fromkeys(experiments)]
        needs_one = {"--out": out, "--resume-from": resume_from, "--json": json}
        _check_options(chosen, [name for name, value in needs_one.items() if value], no_futility)
        if json and not explain:
            raise ValueError("--json needs --explain.")
        if explain:
            for each in chosen:
                _print_plan(each, json)
            return
        folders = [_find_folders(each, out, resume_from, smoke) for each in chosen]
        if any(each.on_one_thread for each in chosen):
            require_one_thread()
    for each in chosen:
        if not smoke and each.minutes > LONG_MINUTES:
            _print_plan(each, False)
            if not yes and sys.stdin.isatty():
                typer.confirm(f"Run {each.name}, {_name_duration(each, smoke)}?", abort=True)
    for each, (folder, resumed) in zip(chosen, folders, strict=True):
        typer.echo(f"{each.name}: {each.question} ({_name_duration(each, smoke)})", err=True)
        _execute(each, folder, smoke, resumed, stops_for_futility=not no_futility)


def _name_duration(experiment: "Experiment", smoke: bool) -> str:
    return "seconds, or a minute or two" if smoke else f"about {experiment.minutes:g} min on two cores"


def _check_options(experiments: "list[Experiment]", needs_one: list[str], no_futility: bool) -> None:
    if needs_one and len(experiments) > 1:
        names = ", ".join(each.name for each in experiments)
        raise ValueError(f"{needs_one[0]} needs a single experiment, got {names}.")
    for each in experiments:
        if no_futility and not each.is_sequential:
            raise ValueError(f"--no-futility needs an experiment with interim analyses, got {each.name}.")


def _find_folders(
    experiment: "Experiment", out: Path | None, resume_from: Path | None, smoke: bool
) -> "tuple[Path, Results | None]":
    """Return the result directory, which can be written, and the earlier result to resume from."""
    from simlab.core.paths import default_out
    from simlab.studies.experiment import find_resumable

    folder = out or default_out(experiment.name, smoke)
    resumed = None if resume_from is None else find_resumable(experiment, resume_from, folder, smoke)
    check_writable(folder)
    return folder, resumed


def _execute(
    experiment: "Experiment",
    folder: Path,
    smoke: bool,
    resumed: "Results | None",
    *,
    stops_for_futility: bool,
) -> None:
    """Run the experiment; print where its results are, and how its figures are drawn."""
    from simlab.studies.experiment import execute
    from simlab.studies.loading import find_figures

    results = execute(experiment, folder, smoke, resumed, stops_for_futility=stops_for_futility)
    timings = results.manifest["timings"]
    computing = timings.get("sweep computing", 0.0)
    cached = f"; computing the runs, cached ones too, took {computing / 60:.1f} min" if computing else ""
    typer.echo(f"results: {folder} ({', '.join(results.table_names)}; {timings['total']:.1f} s{cached})")
    if figures := find_figures(experiment.name):
        typer.echo(f"figures: simlab figures {' '.join(figures)} --results {folder}")


def _print_plan(experiment: "Experiment", json: bool) -> None:
    from simlab.studies.preview import format_preview, preview

    plan = preview(experiment)
    if json:
        print_json(plan)
    else:
        typer.echo(format_preview(plan))
