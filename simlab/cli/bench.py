"""`simlab bench`: measure the throughput of parallel runs on this device."""

from pathlib import Path
from typing import Annotated, Any

import typer

from simlab.cli.output import Json, one_clear_error, show

EPILOG = (
    "Example: `simlab bench --smoke`; on a GPU `simlab bench --batch-sizes 1,16,256 --seconds 500 --json`. "
    "Then `simlab figures device_speed --results runs/bench_device`."
)
COLUMNS = (
    "runs_per_batch",
    "status",
    "run_steps_per_s",
    "tokens_per_s",
    "of_product_rate",
    "of_copy_rate",
    "of_roofline",
)


def bench(
    batch_sizes: Annotated[
        str | None,
        typer.Option(
            help="Numbers of parallel runs, comma-separated (default 1 to 8 on a CPU, 1 to 1024 on a GPU)."
        ),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Time limit in seconds, after which the other batch sizes are skipped. The ceilings and the "
            "first batch size are always measured.",
        ),
    ] = 420.0,
    smoke: Annotated[bool, typer.Option("--smoke", help="Tiny version that takes seconds.")] = False,
    out: Annotated[Path | None, typer.Option(help="Result directory (default runs/bench_device).")] = None,
    json: Json = False,
) -> None:
    """Measure run-steps and tokens per second of parallel flagship runs as fractions of the roofline.

    The same run measures the ceilings (float32 products, copy). It stops when memory is exhausted.
    """
    from dataclasses import replace
    from functools import partial

    from simlab.cli.run import check_writable
    from simlab.core.manifest import device
    from simlab.core.paths import default_out
    from simlab.studies.experiment import execute
    from simlab.studies.loading import load_experiment

    with one_clear_error():
        chosen: Any = load_experiment("bench_device")
        folder = check_writable(out or default_out("bench_device", smoke))
        measure = partial(chosen.run, batch_sizes=_parse_batch_sizes(batch_sizes), limit_seconds=seconds)
    results = execute(replace(chosen, run=measure), folder, smoke)
    steps = results.table("batch_sizes").query("stage == 'step'").loc[:, list(COLUMNS)].astype(object)
    # JSON has no NaN.
    rows = steps.where(steps.notna(), None).to_dict("records")
    show(rows, json, f"Parallel flagship runs, {device()['kind']}")
    if not json:
        for name in ("ceilings", "verdicts"):
            show(results.table(name).to_dict("records"), False, name.capitalize())
    typer.echo(f"results: {folder} ({', '.join(results.table_names)})", err=True)


def _parse_batch_sizes(text: str | None) -> list[int] | None:
    """Return the numbers of a text such as `1,4,16`."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < int(part) < 2**20 for part in parts):
        raise ValueError(
            f"--batch-sizes must be comma-separated numbers of runs such as 1,4,16, got {text!r}."
        )
    return [int(part) for part in parts]
