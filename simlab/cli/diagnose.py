"""`simlab diagnose`: name the cause of a run's mismatch from its log; compare two logs."""

from pathlib import Path
from typing import Annotated

import typer

from simlab.cli.output import Json, check_out_folder, count, one_clear_error, print_json, print_lines, show
from simlab.core.plugins import import_from_checkout

EPILOG = (
    "Reads Parquet or JSON lines (verl, NeMo-RL, prime-rl; columns: docs/diagnosis.md), slime's and miles' "
    "`.pt` dumps, TRL's `trainer_state.json`, TensorBoard's event files, trackio's databases, and CSV. "
    "Example: `simlab diagnose dumps/ --out runs/mine --figure`; compare: `simlab diagnose a/ b/`."
)
SHOWN = 5
"""Number of causes in the table."""

LogPath = Annotated[Path, typer.Argument(help="Log file, or directory of log files.")]
After = Annotated[Path | None, typer.Argument(help="Second log, to compare with the first.")]
Out = Annotated[
    Path | None,
    typer.Option(help="Result directory (default none; runs/diagnosis with --figure)."),
]
Figure = Annotated[
    bool, typer.Option("--figure", help="Figure of the signatures of the log, in the result directory.")
]
Rename = Annotated[
    list[str] | None,
    typer.Option(help="Name in the files and the column that it means, as FOUND=COLUMN; repeatable."),
]


def diagnose(
    path: LogPath,
    after: After = None,
    out: Out = None,
    figure: Figure = False,
    rename: Rename = None,
    as_json: Json = False,
) -> None:
    """Name the cause of a mismatch, with probability, evidence, check and fix."""
    from simlab.diagnosis import compare_logs, write_diagnosis
    from simlab.diagnosis import diagnose as diagnose_path

    with one_clear_error():
        for option, is_given in (("--figure", figure), ("--out", out is not None)):
            if is_given and after is not None:
                raise ValueError(f"{option} takes one log. Remove the second one.")
        if figure and out is None:
            out = Path("runs") / "diagnosis"
        if out is not None:
            check_out_folder(out)
        names = _parse_rename(rename or [])
        if after is not None:
            title = f"{after} minus {path}, 95% intervals by sequence"
            show(compare_logs(path, after, names), as_json, title)
            return
        diagnosis = diagnose_path(path, names)
        if out is not None:
            write_diagnosis(diagnosis, out, str(path))
    (_print_json if as_json else _print)(diagnosis)
    if figure and out is not None:
        paths = _draw(out)
        typer.echo(f"figure: {', '.join(map(str, paths))}", err=as_json)


def _parse_rename(pairs: list[str]) -> dict[str, str]:
    from simlab.diagnosis import COLUMNS

    names = {}
    for pair in pairs:
        source, equals, column = pair.partition("=")
        if not (source and equals) or column not in COLUMNS:
            allowed = ", ".join(COLUMNS)
            raise ValueError(f"--rename must be FOUND=COLUMN with a column of {allowed}, got {pair}.")
        names[source] = column
    return names


def _print_json(diagnosis) -> None:
    content = {
        "source": diagnosis.source,
        "causes": diagnosis.cause_rows(),
        "answers": diagnosis.answer_rows(),
        "metrics": diagnosis.metrics,
        "problems": [str(problem) for problem in diagnosis.problems],
        "warnings": diagnosis.warnings,
    }
    print_json(content)


def _print(diagnosis) -> None:
    for warning in diagnosis.warnings:
        typer.secho(f"warning: {warning}\n", fg=typer.colors.YELLOW)
    size = f"{count(diagnosis.num_sequences, 'sequence')}, {count(diagnosis.num_tokens, 'token')}"
    best = [cause for cause in diagnosis.causes[:SHOWN] if cause.probability >= 0.005]
    rows = [{"cause": cause.cause, "probability": f"{cause.probability:.0%}"} for cause in best]
    show(rows, False, title=size if diagnosis.num_tokens else diagnosis.source)
    for cause in best[:2]:
        lines = (*cause.evidence, f"check: {cause.check}", f"fix: {cause.fix}")
        print_lines(f"{cause.cause} ({cause.probability:.0%})", lines)
    typer.echo("")
    answers = [
        {"question": answer.question, "answer": answer.verdict, "confidence": f"{answer.confidence:.0%}"}
        for answer in diagnosis.answers.values()
    ]
    show(answers, False)
    for answer in diagnosis.answers.values():
        advice = [f"-> {answer.recommendation}"] if answer.recommendation else []
        print_lines(answer.question, (*answer.evidence, *advice))
    if diagnosis.metrics:
        typer.echo("")
        show(diagnosis.metric_rows(), False)
    for problem in diagnosis.problems:
        typer.secho(f"skipped: {problem}", err=True, fg=typer.colors.YELLOW)


def _draw(out: Path) -> list[Path]:
    from simlab.core.results import Results

    draw = import_from_checkout("figures.diagnosis").draw
    return import_from_checkout("figures.style").render(draw, Results(out), out, "diagnosis")
