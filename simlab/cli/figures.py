"""`simlab figures`: draw figures from results."""

from pathlib import Path
from typing import Annotated

import typer

from simlab.cli.output import check_out_folder, one_clear_error

EPILOG = (
    'Example: `simlab figures format_error "lr Fig. 11"`. Without `--results`, reads runs/EXPERIMENT, '
    "then the results shipped with the package."
)
SECONDS_PER_FIGURE = 0.9
"""Mean over the catalog, on two cores."""


def figures(
    names: Annotated[
        list[str] | None,
        typer.Argument(help='Names of figures, also those of a paper, such as "acrl Tab. 2" (default all).'),
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="Result directory, or a directory of several: DIR/EXPERIMENT.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory for the PNG and SVG files.")] = Path("runs/figures"),
) -> None:
    """Draw figures as PNG and SVG from result tables."""
    from simlab.core.paths import add_checkout_to_path

    add_checkout_to_path()
    from figures.catalog import FIGURES

    with one_clear_error():
        check_out_folder(out)
        chosen = [_find_figure(name) for name in names] if names else list(FIGURES)
    if not names:
        seconds = round(len(chosen) * SECONDS_PER_FIGURE, -1)
        typer.echo(
            f"drawing {len(chosen)} figures, about {seconds:.0f} s on two cores; pass names to draw fewer",
            err=True,
        )
    drawn = [_draw(name, results, out, required=bool(names)) for name in chosen]
    if not any(drawn) or (names and not all(drawn)):
        raise typer.Exit(2)


def _find_figure(name: str) -> str:
    """Return the catalog's name of a figure, also from the paper's: `acrl Tab. 2` is `acrl_tab2`.

    Raises `ValueError` for an unknown figure, and for a figure of a paper that simlab does not draw.
    """
    from figures.catalog import FIGURES, NAMES
    from figures.papers import NOT_DRAWN
    from simlab.core.catalog import lookup

    def plain(text: str) -> str:
        return "".join(filter(str.isalnum, text)).casefold()

    for paper, reason in NOT_DRAWN.items():
        if plain(paper) == plain(name):
            raise ValueError(f"{paper} is not drawn: {reason}.")
    name = {plain(paper): own for paper, own in NAMES.items()}.get(plain(name), name)
    lookup(FIGURES, name, "figure")
    return name


def _draw(name: str, results: Path | None, out: Path, required: bool) -> bool:
    """Return whether a figure is drawn; without a result the reason is printed, in red if it was named."""
    from figures.catalog import FIGURES
    from figures.style import render

    try:
        source = _find_results(FIGURES[name].experiment, results)
        paths = render(FIGURES[name].draw, source, out, name)
    except (OSError, ValueError) as error:
        typer.secho(f"simlab: {name}: {error}", err=True, fg=typer.colors.RED if required else None)
        return False
    typer.echo(f"{name}: {', '.join(map(str, paths))}  (from {source.folder})")
    return True


def _find_results(experiment: str, named: Path | None):
    """Return the `Results` of `experiment` in `named`, in runs/, or among the shipped results."""
    from simlab.core.manifest import MANIFEST_NAME
    from simlab.core.paths import committed_results, default_out
    from simlab.core.results import Results

    folders = default_out(experiment, smoke=False), committed_results(experiment)
    if named is not None:
        folders = named, named / experiment
    for folder in folders:
        if (folder / MANIFEST_NAME).is_file():
            stored = Results(folder)
            if stored.manifest["name"] != experiment:
                raise ValueError(
                    f"{folder} holds a run of {stored.manifest['name']!r}, not of {experiment!r}"
                )
            return stored
    searched = " and ".join(map(str, folders))
    smoke = default_out(experiment, smoke=True)
    fix = f"make one with: simlab run {experiment}"
    if named is None and (smoke / MANIFEST_NAME).is_file():
        fix = f"draw the smoke run with: --results {smoke}"
    raise FileNotFoundError(f"no finished run in {searched}; {fix}")
