"""Forecast of the time of a sweep before compilation: from timings of earlier sweeps, or estimated.

Timings are kept next to the compiled functions, a file per static signature and version of the code.
"""

import hashlib
import json
import re
import statistics
import time
from collections.abc import Mapping
from pathlib import Path

from simlab.core.atomic import write_atomically
from simlab.core.json_value import Json
from simlab.sweeps.compile_cache import compile_cache_folder
from simlab.sweeps.config import code_digest
from simlab.sweeps.plan import CompileGroup, Plan
from simlab.sweeps.program import chunk_length, static_signature, swept_recipe

# Two pinned processes share caches and memory: together they were 1.7 times one of them.
GAIN = 0.85
# Of the flagship on two cores (f32/bf16, 4 runs per batch), until this machine has timings of its own.
COMPILE_SECONDS = 40.0
SECONDS_PER_COST = 6e-10
# A kept program is traced or read again in about this part of the time that it took to compile.
LOAD_FRACTION = 0.3
NEAR = 4.0
"""Largest ratio of the costs of two programs whose timings predict each other."""
START_SECONDS = 5.0
"""Seconds until a worker process has imported JAX."""

Timing = dict[str, float]


def expected_minutes(plan: Plan, processes: int) -> float:
    """Return the expected wall time of the missing runs, compilation included.

    Programs are compiled in parallel by as many processes; a process loads what another has compiled.
    """
    timings = [timing_of(group, plan.runs_per_batch) for group in plan.groups]
    rounds = [group.count_batches(plan.runs_per_batch) * count_steps(group) for group in plan.groups]
    busy = sum(count * timing["step"] for count, timing in zip(rounds, timings, strict=True))
    speed = max(1, processes) * (GAIN if processes > 1 else 1.0)
    longest = max(
        count_steps(group) * timing["step"] for group, timing in zip(plan.groups, timings, strict=True)
    )
    compiling = sum(timing["compile"] for timing in timings) / min(max(1, processes), len(timings))
    loading = START_SECONDS if processes else 0.0
    if processes > len(timings):
        loading += LOAD_FRACTION * max(timing["compile"] for timing in timings)
    return (compiling + loading + max(busy / speed, longest)) / 60


def count_steps(group: CompileGroup) -> int:
    """Return the number of steps that a run of a group computes: whole chunks."""
    chunk = chunk_length(group.steps)
    return -(-group.steps // chunk) * chunk


def timing_of(group: CompileGroup, runs_per_batch: int) -> Timing:
    """Return the seconds to get the compiled function of a group, and those of one step of a run batch."""
    known = _read(_path(group, runs_per_batch))
    if known:
        return {"compile": known.get("load", LOAD_FRACTION * known["compile"]), "step": known["step"]}
    others = (
        [_read(path) for path in _folder().glob(f"*-{runs_per_batch}.json")] if compile_cache_folder() else []
    )
    near = [timing for timing in others if timing and is_near(timing["cost"], group.cost)]
    costs = [timing["step"] / timing["cost"] for timing in near]
    compiling = [timing["compile"] for timing in near]
    return {
        "compile": statistics.median(compiling) if compiling else COMPILE_SECONDS,
        "step": group.cost * (statistics.median(costs) if costs else SECONDS_PER_COST * runs_per_batch / 4),
    }


def is_near(cost: float, other: float) -> bool:
    """Return whether timings of one cost predict those of another; a step of a small model is overhead."""
    return max(cost, other) <= NEAR * min(cost, other)


class Stopwatch:
    """Keeps what programs cost in this process, from the events of the work loop."""

    def __init__(self, plan: Plan):
        """Start at the beginning of the work on `plan`."""
        self._runs_per_batch = plan.runs_per_batch
        self._group_of = {run.key: group for group in plan.groups for run in group.runs}
        self._seconds: dict[int, list[float]] = {}
        self._is_kept = {id(group): _path(group, plan.runs_per_batch).is_file() for group in plan.groups}
        self._last = time.perf_counter()

    def __call__(self, event: Mapping[str, Json]) -> None:
        """Note the time of an event; the end of a batch writes the timing of its group."""
        group = self._group_of[event["runs"][0]]  # type: ignore[index]
        now = time.perf_counter()
        if event["event"] == "chunk":
            self._seconds.setdefault(id(group), []).append(now - self._last)
        elif compile_cache_folder() is not None and self._seconds.get(id(group)):
            self._write(group, self._seconds[id(group)])
        self._last = now

    def _write(self, group: CompileGroup, seconds: list[float]) -> None:
        # The longest interval is the one in which the program was compiled.
        usual = statistics.median(seconds) if len(seconds) > 2 else min(seconds)
        if len(seconds) == 1:
            usual = min(usual, timing_of(group, self._runs_per_batch)["step"] * chunk_length(group.steps))
        path = _path(group, self._runs_per_batch)
        name = "load" if self._is_kept[id(group)] else "compile"
        timing = {"compile": 0.0} | _read(path) | {name: max(seconds) - usual}
        timing |= {"step": usual / chunk_length(group.steps), "cost": group.cost}
        write_atomically(path, lambda file: file.write(json.dumps(timing).encode()))


def _folder() -> Path:
    return Path(compile_cache_folder() or "") / "timings"


def _path(group: CompileGroup, runs_per_batch: int) -> Path:
    recipe = swept_recipe(group.runs[0].config)
    # Functions print their place in memory.
    signature = re.sub(r" at 0x[0-9a-f]+", "", str(static_signature(recipe, chunk_length(group.steps))))
    digest = hashlib.sha256(f"{code_digest()} {signature}".encode()).hexdigest()[:20]
    return _folder() / f"{digest}-{runs_per_batch}.json"


def _read(path: Path) -> Timing:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
