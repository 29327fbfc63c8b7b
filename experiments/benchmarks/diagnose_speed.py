"""Measure the run time of `simlab diagnose` on logs of every format that it reads."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from simlab.diagnosis.injected_faults import generate_log
from simlab.diagnosis.log import TokenLog
from simlab.diagnosis.log_writer import write_log
from simlab.studies.experiment import Experiment, ExperimentContext

LIMIT = 10.0
STEPS, SEQUENCES, LONGEST = 40, 64, 521
LISTS = ("logp_train", "logp_infer", "ids", "advantages")


def dumps(steps: int) -> Iterator[tuple[int, TokenLog]]:
    """Yield one FP8 log without a fault per step, of the size and columns of the verl plug-in's dumps."""
    for step in range(steps):
        log = generate_log("no_fault", 0, step, noise=0.5, sequences=SEQUENCES, length=LONGEST, steps=1)
        here = np.full(log.num_sequences, step)
        yield step, replace(log, step=here, version=here - 1)


def write_parquet(folder: Path, steps: int) -> int:
    """Write Parquet, a file a step, and return the number of tokens."""
    return sum(
        len(log.mask) for step, log in dumps(steps) if write_log(log, folder / f"step_{step:06d}.parquet")
    )


def write_lines(folder: Path, steps: int) -> int:
    """Write JSON lines, without experts, and return the number of tokens."""
    tokens = 0
    for step, log in dumps(steps):
        ends = np.cumsum(log.lengths)
        with open(folder / f"step_{step:06d}.jsonl", "w") as file:
            for start, end in zip(ends - log.lengths, ends, strict=True):
                row = {name: getattr(log, name)[start:end].tolist() for name in LISTS}
                file.write(json.dumps(row | {"step": step}) + "\n")
        tokens += int(ends[-1])
    return tokens


FORMATS: dict[str, Callable[[Path, int], int]] = {"parquet": write_parquet, "jsonl": write_lines}


def time_command(folder: Path) -> tuple[float, float]:
    """Return wall and CPU seconds of the command in its own process with at most two cores."""
    cores = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0)
    allowed = sorted(cores)[:2]
    code = f"import os; getattr(os, 'sched_setaffinity', lambda *_: None)(0, {allowed}); "
    code += "from simlab.cli import app; app()"
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-c", code, "diagnose", str(folder), "--json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run(run: ExperimentContext) -> None:
    """Write the table `diagnose`: the median of the calls, per format."""
    steps, calls = (2, 1) if run.smoke else (STEPS, 3)
    run.seeds(range(steps))
    run.configure(steps=steps, sequences=SEQUENCES, longest=LONGEST, calls=calls, limit=LIMIT)
    rows = []
    for name in run.track(list(FORMATS), "formats"):
        with tempfile.TemporaryDirectory() as folder:
            with run.phase(f"write {name}"):
                tokens = FORMATS[name](Path(folder), steps)
            with run.phase(f"diagnose {name}"):
                seconds = np.median([time_command(Path(folder)) for _ in range(calls)], axis=0)
        wall, cpu = map(float, seconds)
        rows.append({"format": name, "tokens": tokens, "wall_seconds": wall, "cpu_seconds": cpu})
        run.report(
            f"{name}: {tokens:,} tokens in {wall:.1f} s, {cpu:.1f} s of CPU (at most {LIMIT:g} wanted)"
        )
    run.table("diagnose", rows)


EXPERIMENT = Experiment(
    name="bench_diagnose",
    question="How long does `simlab diagnose` take for a million tokens?",
    decision_rule=f"Fast enough if a million tokens take less than {LIMIT:g} s on two cores, from the "
    "command to its answers (median of three calls).",
    run=run,
    minutes=1.5,
)
