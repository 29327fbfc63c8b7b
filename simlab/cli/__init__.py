"""Define the command line: one file per command, which parses options and calls the library."""

import functools
from collections.abc import Callable
from typing import Annotated, ParamSpec, TypeVar

import typer

from simlab.cli import (
    bench,
    budget_command,
    calibrate,
    checkpoint,
    claims,
    demo,
    diagnose,
    doctor,
    explain_command,
    export,
    figures,
    listing,
    plan_command,
    probe,
    report_command,
    run,
    sweep_command,
    theory,
    warm_start_command,
    watch_command,
)
from simlab.core.version import __version__

app = typer.Typer(
    name="simlab",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="A numerical-precision simulation lab for reinforcement learning of language models.",
    epilog="Example: `simlab run formats --smoke && simlab figures format_error`",
)


Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


def _keep_compiled(command: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """Return `command` with the folder of compiled functions; JAX is imported when the command runs."""

    @functools.wraps(command)
    def run(*args: Parameters.args, **options: Parameters.kwargs) -> Returned:
        from simlab.core.backend import enable_compile_cache

        enable_compile_cache()
        return command(*args, **options)

    return run


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"simlab {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Version of simlab; printed before anything else runs.",
        ),
    ] = False,
) -> None:
    pass


# `sweep`, `demo` and experiments that train keep compiled functions themselves; benchmarks do not.
app.add_typer(listing.app, name="list")
app.command("demo", epilog=demo.EPILOG)(demo.demo)
app.command("run", epilog=run.EPILOG)(run.run)
app.command("figures", epilog=figures.EPILOG)(figures.figures)
app.command("sweep", epilog=sweep_command.EPILOG)(sweep_command.sweep)
app.command("watch", epilog=watch_command.EPILOG)(watch_command.watch)
app.command("warm-start", epilog=warm_start_command.EPILOG)(_keep_compiled(warm_start_command.warm_start))
app.add_typer(checkpoint.app, name="checkpoint")
app.command("probe", epilog=probe.EPILOG)(_keep_compiled(probe.probe))
app.command("calibrate", epilog=calibrate.EPILOG)(_keep_compiled(calibrate.calibrate))
app.command("plan", epilog=plan_command.EPILOG)(plan_command.plan)
app.command("diagnose", epilog=diagnose.EPILOG)(_keep_compiled(diagnose.diagnose))
app.command("claims", epilog=claims.EPILOG)(claims.claims)
app.command("report", epilog=report_command.EPILOG)(report_command.report)
app.command("explain", epilog=explain_command.EPILOG)(_keep_compiled(explain_command.explain))
app.add_typer(export.app, name="export")
app.command("theory", epilog=theory.EPILOG)(_keep_compiled(theory.theory))
app.command("budget", epilog=budget_command.EPILOG)(budget_command.budget)
app.command("bench", epilog=bench.EPILOG)(bench.bench)
app.command("doctor", epilog=doctor.EPILOG)(doctor.doctor)


def main() -> None:
    """Run the `simlab` command."""
    app()
