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
    results: Annotated[Path | None, typer.Option(help="Folder of a finished run.")] = None,
    out: Annotated[Path, typer.Option(help="Where PNG and SVG go.")] = Path("figures/out"),
) -> None:
    """Draw figures as PNG and SVG from result tables."""
    from simlab.core.catalog import lookup
    from simlab.core.paths import open_shop

    open_shop()
    catalog = import_module("figures").FIGURES
    with one_clear_error():
        chosen = {name: lookup(catalog, name, "figure") for name in names or catalog}
        if results is not None and len({source.experiment for source in chosen.values()}) > 1:
            raise ValueError("--results holds one experiment; name figures that read the same one")
    failed = 0
    for name, source in chosen.items():
        failed += not _draw(name, source, results, out, required=bool(names))
    if failed:
        raise typer.Exit(2)


def _draw(name: str, source, results: Path | None, out: Path, required: bool) -> bool:
    """Draw one figure; a figure without results is an error only when it was asked for by name."""
    from simlab.core.results import Results

    try:
        found = Results(results or _find_results(source.experiment))
        module = import_module(source.module)
        paths = import_module("figures.style").render(module.draw, found, out, name)
    except FileNotFoundError as error:
        typer.secho(f"simlab: {name}: {error}", err=True, fg=typer.colors.RED if required else None)
        return not required
    typer.echo(f"{name}: {', '.join(map(str, paths))}  (from {found.folder})")
    return True


def _find_results(experiment: str) -> Path:
    from simlab.core.manifest import MANIFEST_NAME
    from simlab.core.paths import committed_results, default_out

    for folder in (default_out(experiment, smoke=False), committed_results(experiment)):
        if (folder / MANIFEST_NAME).is_file():
            return folder
    raise FileNotFoundError(
        f"no results of experiment {experiment!r} yet; make them with: simlab run {experiment}"
    )
