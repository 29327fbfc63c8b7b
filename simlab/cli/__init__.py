"""Define the command line: one file per command, which parses options and calls the library."""

from typing import Annotated

import typer

from simlab.cli import (
    bench,
    budget,
    calibrate,
    checkpoint,
    claims,
    demo,
    diagnose,
    doctor,
    explain,
    export,
    figures,
    listing,
    plan,
    probe,
    report,
    run,
    sweep,
    theory,
    warm_start,
    watch,
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


app.add_typer(listing.app, name="list")
app.command("demo", epilog=demo.EPILOG)(demo.demo)
app.command("run", epilog=run.EPILOG)(run.run)
app.command("figures", epilog=figures.EPILOG)(figures.figures)
app.command("sweep", epilog=sweep.EPILOG)(sweep.sweep)
app.command("watch", epilog=watch.EPILOG)(watch.watch)
app.command("warm-start", epilog=warm_start.EPILOG)(warm_start.warm_start)
app.add_typer(checkpoint.app, name="checkpoint")
app.command("probe", epilog=probe.EPILOG)(probe.probe)
app.command("calibrate", epilog=calibrate.EPILOG)(calibrate.calibrate)
app.command("plan", epilog=plan.EPILOG)(plan.plan)
app.command("diagnose", epilog=diagnose.EPILOG)(diagnose.diagnose)
app.command("claims", epilog=claims.EPILOG)(claims.claims)
app.command("report", epilog=report.EPILOG)(report.report)
app.command("explain", epilog=explain.EPILOG)(explain.explain)
app.add_typer(export.app, name="export")
app.command("theory", epilog=theory.EPILOG)(theory.theory)
app.command("budget", epilog=budget.EPILOG)(budget.budget)
app.command("bench", epilog=bench.EPILOG)(bench.bench)
app.command("doctor", epilog=doctor.EPILOG)(doctor.doctor)


def main() -> None:
    """Entry point of the `simlab` command."""
    app()
