"""The record of an experiment, and the context that it receives when it runs."""

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

import pandas as pd
import pyarrow.parquet as pq

from simlab.core.atomic import write_atomically
from simlab.core.json_value import Json
from simlab.core.manifest import MANIFEST_NAME, build_manifest, write_manifest
from simlab.core.progress import console, show_progress, track
from simlab.core.results import Columns, Results, Rows, write_table
from simlab.studies.design import Design
from simlab.studies.records import Measured

Item = TypeVar("Item")

UNFINISHED_NAME = ".unfinished.json"
"""File that lists the tables of a run until its manifest does, so that the next run can remove them."""


@dataclass
class ExperimentContext:
    """One execution of an experiment: its folder, its mode, and the contents of its manifest.

    `resume_from` is an earlier result whose rows are kept; only what it lacks is run. `stops_for_futility`:
    a trial that will hardly be decided ends at the first interim analysis.
    """

    name: str
    out: Path
    smoke: bool = False
    resume_from: Results | None = None
    stops_for_futility: bool = True
    config: dict[str, Json] = field(default_factory=dict)
    recorded_seeds: list[int] = field(default_factory=list)
    timings: dict[str, float] = field(default_factory=dict)
    tables: dict[str, int] = field(default_factory=dict)

    def configure(self, **values: object) -> None:
        """Record settings of this run in the manifest; JSON values only."""
        self.config.update(values)

    def seeds(self, seeds: Iterable[int]) -> list[int]:
        """Record the seeds of this run and return them as a list."""
        listed = [int(seed) for seed in seeds]
        self.recorded_seeds.extend(seed for seed in listed if seed not in self.recorded_seeds)
        return listed

    def track(self, items: Iterable[Item], description: str, total: int | None = None) -> Iterator[Item]:
        """Iterate with progress."""
        return track(items, description, total)

    def progress(
        self, description: str, total: int, each: int = 1
    ) -> AbstractContextManager[Callable[..., None]]:
        """Show progress of `total` steps; the context's function is a callback for every `each` of them."""
        return show_progress(description, total, each)

    def report(self, message: str) -> None:
        """Print one line on the terminal."""
        console.print(message, highlight=False, markup=False)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a part of the run; seconds go to the manifest, never to a table."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.timings[name] = self.timings.get(name, 0.0) + time.perf_counter() - start

    def table(self, name: str, data: Columns | Rows | pd.DataFrame) -> Path:
        """Write a table of results and note its number of rows."""
        if name not in self.tables:
            self.tables[name] = 0
            record = json.dumps({"name": self.name, "tables": self.tables}).encode()
            write_atomically(self.out / UNFINISHED_NAME, lambda file: file.write(record))
        path = write_table(self.out, name, data)
        self.tables[name] = pq.read_metadata(path).num_rows
        return path


@dataclass(frozen=True)
class Experiment:
    """A question with a decision rule that was written before the answer was known.

    `minutes` is the expected time of a full run on two CPU cores; `claims` are ids of the claims that it
    tests. `collect_evidence` reads a finished run and returns what each trial measured; it
    computes nothing that takes long.
    `kind` is the kind of evidence: exact sums (`identity`), a computation without training
    (`measurement`), or runs (`dynamics`).
    `check_resume`, of an experiment that can resume, raises `ValueError` for a result that does not fit.
    `design` is that of a training experiment. `registered` holds the hashes of
    the criteria of its claims (`simlab.studies.registration`), which the manifest records before the answer.
    `is_sequential`: it has interim analyses, of which the first may stop trials for futility.
    `on_one_thread`: it computes training runs, whose bits depend on the number of threads, in this process.
    Such an experiment keeps compiled functions; others may measure what compilation costs.
    """

    name: str
    question: str
    decision_rule: str
    run: Callable[[ExperimentContext], None]
    minutes: float
    claims: tuple[str, ...] = ()
    collect_evidence: Callable[[Results], Sequence[Measured]] | None = None
    check_resume: Callable[[Results], None] | None = None
    kind: Literal["identity", "measurement", "dynamics"] = "dynamics"
    design: Design | None = None
    registered: Mapping[str, Json] = field(default_factory=dict)
    is_sequential: bool = False
    on_one_thread: bool = False


def execute(
    experiment: Experiment,
    out: Path,
    smoke: bool = False,
    resume_from: Results | None = None,
    stops_for_futility: bool = True,
) -> Results:
    """Run `experiment` into the folder `out`, resuming from `resume_from`; write the manifest last.

    The manifest is removed first and written last: a folder with one holds a finished run. The tables of an
    earlier run of `experiment` in `out`, finished or not, are removed too, unless `resume_from` is that run.
    All other files stay. An experiment that needs one thread raises the errors of `require_one_thread`.
    """
    if experiment.on_one_thread:
        # First of all: whatever starts JAX decides the number of threads.
        from simlab.core.backend import enable_compile_cache, require_one_thread

        require_one_thread()
        enable_compile_cache()
    out.mkdir(parents=True, exist_ok=True)
    if resume_from is not None and resume_from.folder.resolve() == out.resolve():
        (out / MANIFEST_NAME).unlink(missing_ok=True)
    else:
        _remove_earlier_run(experiment.name, out)
    run = ExperimentContext(experiment.name, out, smoke, resume_from, stops_for_futility)
    run.configure(smoke=smoke)
    if not stops_for_futility:
        run.configure(stops_for_futility=False)
    if experiment.registered:
        run.configure(registered=dict(experiment.registered))
    with run.phase("total"):
        experiment.run(run)
    write_manifest(out, build_manifest(run.name, run.config, run.recorded_seeds, run.timings, run.tables))
    (out / UNFINISHED_NAME).unlink(missing_ok=True)
    return Results(out)


def _remove_earlier_run(name: str, out: Path) -> None:
    """Remove the manifest in `out`, and the tables that an earlier run of the experiment `name` lists."""
    manifest, record = out / MANIFEST_NAME, out / UNFINISHED_NAME
    # After the rename a kill leaves an unfinished run, whose tables the next run removes.
    if manifest.is_file():
        manifest.replace(record)
    if not record.is_file():
        return
    try:
        earlier = json.loads(record.read_bytes())
        listed = set(earlier["tables"]) if earlier["name"] == name else set()
    except (ValueError, TypeError, KeyError):  # not a file that simlab wrote
        listed = set()
    for path in out.glob("*.parquet"):
        if path.stem in listed:
            path.unlink()
    record.unlink()


def find_resumable(experiment: Experiment, folder: Path, out: Path, smoke: bool = False) -> Results:
    """Return the result in `folder` from which a run into `out` can resume.

    Raises:
        ValueError: If the experiment cannot resume, or the result does not fit.
    """
    if experiment.check_resume is None:
        raise ValueError(f"{experiment.name} cannot resume. Remove --resume-from.")
    if folder.resolve() == out.resolve():
        raise ValueError(f"--resume-from must differ from --out, got {folder} for both. Pass another --out.")
    result = Results(folder)
    if "smoke" not in result.manifest["config"]:
        name = result.manifest["name"]
        raise ValueError(
            f"--resume-from must hold a run of an experiment, got {folder}, a result of {name!r}."
        )
    if result.manifest["config"]["smoke"] != smoke:
        kind = "smoke" if smoke else "full"
        raise ValueError(f"--resume-from must hold a {kind} run, got {folder}.")
    experiment.check_resume(result)
    return result
