"""`simlab list`: what the catalogs hold."""

from importlib import import_module

import typer

from simlab.cli.output import Json, show

app = typer.Typer(
    no_args_is_help=True,
    help="List formats, engines, objectives, experiments or figures.",
    epilog="Example: `simlab list formats --json`",
)


@app.command(epilog="Example: `simlab list formats`")
def formats(json: Json = False) -> None:
    """Number formats: bits, range and unit roundoff."""
    from simlab.formats import FORMATS

    rows = [
        {
            "name": name,
            "mantissa_bits": int(fmt.mantissa_bits),
            "min_exponent": int(fmt.min_exponent),
            "max_finite": float(fmt.max_finite),
            "unit_roundoff": 2.0 ** -(int(fmt.mantissa_bits) + 1),
        }
        for name, fmt in FORMATS.items()
    ]
    show(rows, json, "Number formats")


@app.command(epilog="Example: `simlab list experiments --json`")
def experiments(json: Json = False) -> None:
    """Experiments: question, claims and time."""
    from simlab.cli.run import load_experiment
    from simlab.core.paths import open_shop

    open_shop()
    rows = []
    for name in import_module("experiments").EXPERIMENTS:
        found = load_experiment(name)
        rows.append(
            {
                "name": name,
                "question": found.question,
                "claims": list(found.claims),
                "minutes": found.minutes,
                "figures": list(found.figures),
            }
        )
    show(rows, json, "Experiments")


@app.command(epilog="Example: `simlab list figures`")
def figures(json: Json = False) -> None:
    """Figures: what they read and what they show."""
    from simlab.core.paths import open_shop

    open_shop()
    catalog = import_module("figures").FIGURES
    rows = [
        {"name": name, "experiment": source.experiment, "caption": source.caption}
        for name, source in catalog.items()
    ]
    show(rows, json, "Figures")
