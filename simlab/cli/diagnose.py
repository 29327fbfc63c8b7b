"""`simlab diagnose`: diagnose a run from its log."""

import json
from pathlib import Path
from typing import Annotated

import typer

from simlab.cli.output import Json, one_clear_error, show
from simlab.core.plugins import import_module

EPILOG = (
    "Reads Parquet or JSON lines (columns: docs/diagnosis.md), slime's `--save-debug-train-data`, and TRL's "
    "`trainer_state.json`. Example: `simlab diagnose dumps/ --out runs/mine --figure`."
)


def diagnose(
    path: Annotated[Path, typer.Argument(help="Log file, or directory of log files.")],
    out: Annotated[Path | None, typer.Option(help="Directory for the tables (Parquet).")] = None,
    figure: Annotated[
        bool, typer.Option("--figure", help="Plot of the mismatch over the steps, written to OUT.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Tell rounding from faults in a mismatch, with confidence and evidence."""
    from simlab.diagnosis import diagnose as ask
    from simlab.diagnosis import write_diagnosis

    with one_clear_error():
        if figure and out is None:
            raise ValueError("--figure needs --out, the directory for the figure.")
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
    size = f"{found.num_sequences:,} sequences, {found.num_tokens:,} tokens"
    shown = [
        {"question": answer.question, "answer": answer.verdict, "confidence": f"{answer.confidence:.0%}"}
        for answer in found.answers.values()
    ]
    show(shown, False, title=size if found.num_tokens else found.source)
    for answer in found.answers.values():
        typer.echo(f"\n{answer.question}")
        for line in (*answer.evidence, *([f"-> {answer.recommendation}"] if answer.recommendation else [])):
            typer.echo(f"  {line}")
    if found.metrics:
        typer.echo("")
        show(found.metric_rows(), False)
    for problem in found.problems:
        typer.secho(f"skipped: {problem}", err=True, fg=typer.colors.YELLOW)


def _draw(out: Path) -> list[Path]:
    from simlab.core.paths import open_shop
    from simlab.core.results import Results

    open_shop()
    draw = import_module("figures.diagnosis").draw
    return import_module("figures.style").render(draw, Results(out), out, "diagnosis")


def _plain(value):
    """Replace NaN and infinity, which JSON lacks, by null."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and value - value != 0:
        return None
    return value
