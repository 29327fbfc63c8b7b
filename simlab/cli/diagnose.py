"""`simlab diagnose`: what is wrong with a run, from its log."""

import json
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from simlab.cli.output import Json, one_clear_error, show

EPILOG = (
    "Reads Parquet or JSON lines (columns: docs/diagnosis.md), slime's `--save-debug-train-data`, and TRL's "
    "`trainer_state.json`. Example: `simlab diagnose dumps/ --out runs/mine --figure`."
)


def diagnose(
    path: Annotated[Path, typer.Argument(help="A log, or a folder of logs.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the tables (Parquet).")] = None,
    figure: Annotated[
        bool, typer.Option("--figure", help="Draw the mismatch over the steps into OUT.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say whether a mismatch is rounding or a fault, how sure that is, and why."""
    from simlab.diagnosis import diagnose as ask
    from simlab.diagnosis import write_diagnosis

    with one_clear_error():
        if figure and out is None:
            raise ValueError("--figure needs --out, the folder to draw into")
        found = ask(path)
        if out is not None:
            write_diagnosis(found, out, str(path))
    if as_json:
        problems = [str(problem) for problem in found.problems]
        content = {"answers": found.answer_rows(), "metrics": found.metrics, "problems": problems}
        typer.echo(json.dumps(_plain(content), indent=2))
    else:
        _print(found)
    if figure and out is not None:
        paths = _draw(out)
        typer.echo(f"figure: {', '.join(map(str, paths))}", err=as_json)


def _print(found) -> None:
    size = f"{found.sequences:,} sequences, {found.tokens:,} tokens" if found.tokens else found.source
    shown = [
        {"question": answer.question, "answer": answer.verdict, "sure": f"{answer.sure:.0%}"}
        for answer in found.answers.values()
    ]
    show(shown, False, title=size)
    for answer in found.answers.values():
        typer.echo(f"\n{answer.question}")
        for line in (*answer.evidence, *([f"-> {answer.advice}"] if answer.advice else [])):
            typer.echo(f"  {line}")
    if found.metrics:
        typer.echo("")
        show(found.metric_rows(), False)
    for problem in found.problems:
        typer.secho(f"left out: {problem}", err=True, fg=typer.colors.YELLOW)


def _draw(out: Path) -> list[Path]:
    from simlab.core.paths import open_shop
    from simlab.core.results import Results

    open_shop()
    draw = import_module("figures.diagnosis").draw
    return import_module("figures.style").render(draw, Results(out), out, "diagnosis")


def _plain(value):
    """JSON has no NaN and no infinity: null."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and value - value != 0:
        return None
    return value
