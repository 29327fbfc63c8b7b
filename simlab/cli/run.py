"""`simlab run`: run experiments into result folders."""

from pathlib import Path
from typing import Annotated

import typer

from simlab.cli.output import one_clear_error

EPILOG = (
    "Example: `simlab run softmax --smoke --out /tmp/softmax`, "
    "or `simlab run moe_dynamics --after experiments/results/moe_dynamics`. "
    "What there is: `simlab list experiments`."
)


def run(
    experiment: Annotated[str, typer.Argument(help="Name of the experiment.")],
    smoke: Annotated[bool, typer.Option("--smoke", help="A tiny version that takes seconds.")] = False,
    out: Annotated[Path | None, typer.Option(help="Result folder; default runs/EXPERIMENT.")] = None,
    after: Annotated[
        Path | None,
        typer.Option(
            help="Folder of an earlier result, or of another's with shared arms: only what it lacks is run."
        ),
    ] = None,
) -> None:
    """Run an experiment and write its tables and manifest."""
    from simlab.core.experiment import earlier, execute
    from simlab.core.paths import default_out
    from simlab.studies.loading import load_experiment

    with one_clear_error():
        chosen = load_experiment(experiment)
        folder = writable(out or default_out(experiment, smoke))
        before = None if after is None else earlier(chosen, after, folder, smoke)
    expected = "seconds" if smoke else f"about {chosen.minutes:g} min on two cores"
    typer.echo(f"{chosen.name}: {chosen.question} ({expected})", err=True)
    results = execute(chosen, folder, smoke, before)
    seconds = results.manifest["timings"]["total"]
    typer.echo(f"results: {folder} ({', '.join(results.table_names)}; {seconds:.1f} s)")
    if chosen.figures:
        typer.echo(f"figures: simlab figures {' '.join(chosen.figures)} --results {folder}")


def writable(folder: Path) -> Path:
    """Create `folder` and try a file in it now: a full disk is better found before the compute."""
    from simlab.core.atomic import write_atomically

    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {folder} is a file; name a folder")
    probe = folder / ".probe"
    write_atomically(probe, lambda file: file.write(b"simlab"))
    probe.unlink()
    return folder
