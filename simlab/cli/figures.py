"""`simlab figures`: draw figures from results."""

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from simlab.cli.output import one_clear_error

EPILOG = (
    "Example: `simlab figures format_error`. Without `--results` a figure reads runs/EXPERIMENT, "
    "and where there is none the results that travel with the code."
)


def figures(
    names: Annotated[list[str] | None, typer.Argument(help="Names of figures; default all.")] = None,
    results: Annotated[
        Path | None, typer.Option(help="Folder of a finished run, or of several: DIR/EXPERIMENT.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where PNG and SVG go.")] = Path("runs/figures"),
) -> None:
    """Draw figures as PNG and SVG from result tables."""
    from simlab.core.catalog import lookup
    from simlab.core.paths import open_shop

    open_shop()
    catalog = import_module("figures").FIGURES
    with one_clear_error():
        chosen = {name: lookup(catalog, name, "figure") for name in names or catalog}
    drawn = [_draw(name, source, results, out, required=bool(names)) for name, source in chosen.items()]
    if not all(drawn):
        raise typer.Exit(2)


def _draw(name: str, source, results: Path | None, out: Path, required: bool) -> bool:
    """Draw one figure; a figure without results is an error only when it was asked for by name."""
    try:
        found = _find_results(source.experiment, results)
        module = import_module(source.module)
        paths = import_module("figures.style").render(module.draw, found, out, name)
    except (FileNotFoundError, ValueError) as error:
        typer.secho(f"simlab: {name}: {error}", err=True, fg=typer.colors.RED if required else None)
        return not required
    typer.echo(f"{name}: {', '.join(map(str, paths))}  (from {found.folder})")
    return True


def _find_results(experiment: str, named: Path | None):
    """Return the `Results` of `experiment`, in `named` or where runs and committed results are."""
    from simlab.core.manifest import MANIFEST_NAME
    from simlab.core.paths import committed_results, default_out
    from simlab.core.results import Results

    places = (
        (default_out(experiment, smoke=False), committed_results(experiment))
        if named is None
        else (named, named / experiment)
    )
    for folder in places:
        if (folder / MANIFEST_NAME).is_file():
            found = Results(folder)
            if found.manifest["name"] != experiment:
                raise ValueError(f"{folder} holds a run of {found.manifest['name']!r}, not of {experiment!r}")
            return found
    looked = " and ".join(map(str, places))
    raise FileNotFoundError(f"no finished run in {looked}; make one with: simlab run {experiment}")
