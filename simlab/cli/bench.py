"""`simlab bench`: what this device gives to runs side by side."""

from pathlib import Path
from typing import Annotated, Any

import typer

from simlab.cli.output import Json, one_clear_error, show

EPILOG = (
    "Example: `simlab bench --smoke`; on a GPU `simlab bench --widths 1,16,256,1024 --seconds 500 --json`. "
    "Then `simlab figures device_speed --results runs/bench_device`."
)
COLUMNS = (
    "width",
    "status",
    "run_steps_per_s",
    "tokens_per_s",
    "of_product_rate",
    "of_copy_rate",
    "of_roofline",
)


def bench(
    widths: Annotated[
        str | None,
        typer.Option(help="Runs side by side, with commas; default 1 to 8 on a CPU, else to 1024."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Widths that would end later are left out.")] = 420.0,
    smoke: Annotated[bool, typer.Option("--smoke", help="A tiny version that takes seconds.")] = False,
    out: Annotated[Path | None, typer.Option(help="Result folder; default runs/bench_device.")] = None,
    json: Json = False,
) -> None:
    """Measure run-steps and tokens per second of flagship runs side by side, and their share of the roofline.

    The ceilings (float32 products, copy) are measured in the same run. It stops where memory does.
    """
    from dataclasses import replace
    from functools import partial

    from simlab.cli.run import check_writable
    from simlab.core.experiment import execute
    from simlab.core.manifest import device
    from simlab.core.paths import default_out
    from simlab.studies.loading import load_experiment

    with one_clear_error():
        chosen: Any = load_experiment("bench_device")
        folder = check_writable(out or default_out("bench_device", smoke))
        measure = partial(chosen.run, widths=_widths(widths), limit_seconds=seconds)
    results = execute(replace(chosen, run=measure), folder, smoke)
    steps = results.table("widths").query("stage == 'step'").loc[:, list(COLUMNS)].astype(object)
    # JSON has no NaN.
    rows = steps.where(steps.notna(), None).to_dict("records")
    show(rows, json, f"Flagship runs side by side, {device()['kind']}")
    if not json:
        for name in ("ceilings", "verdicts"):
            show(results.table(name).to_dict("records"), False, name.capitalize())
    typer.echo(f"results: {folder} ({', '.join(results.table_names)})", err=True)


def _widths(text: str | None) -> list[int] | None:
    """Read `1,4,16`."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < int(part) < 2**20 for part in parts):
        raise ValueError(f"--widths {text!r}; allowed: numbers of runs with commas, such as 1,4,16")
    return [int(part) for part in parts]
