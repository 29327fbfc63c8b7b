"""Forecast of the time of a sweep before compilation, from earlier sweeps or from the traced functions.

Timings are stored next to the compiled functions, a file per static signature and version of the code. A
group without one is traced: compilation is forecast from the number of operations, and a step from the work
of its products and the number of operations that it executes. The trace is stored, so the workers read it
instead of tracing again. Rates are those of this machine's timings, or those of a reference machine times
the slowness that a calibration run at the start measures (`machine_speed`).
"""

import hashlib
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from simlab.core.json_value import Json
from simlab.sweeps.code_version import code_digest, without_addresses
from simlab.sweeps.compilation import count_operations
from simlab.sweeps.compile_cache import was_compiled
from simlab.sweeps.config import recipe_of
from simlab.sweeps.machine_speed import calibrate
from simlab.sweeps.plan import CompileGroup, Plan
from simlab.sweeps.program import chunk_length, stack_shapes, static_signature
from simlab.sweeps.timings import Timing, read_timing, read_timings, timing_path, write_timing

# Two processes share caches and memory: together they were 1.7 times one of them.
GAIN = 0.85
# CPU time on the reference machine, whose slowness is 1, until this machine has timings of its own.
SECONDS_PER_OPERATION = 4.5e-3
"""Of a compilation, per operation of the traced function."""
SECONDS_PER_COST = 2.1e-10
"""Of a step, per run and unit of `CompileGroup.cost`."""
SECONDS_PER_EXECUTION = 4.0e-7
"""Of a step, per executed operation of the traced functions, whatever its size."""
# A stored program is traced or read again in about this part of the time that it took to compile.
LOAD_FRACTION = 0.1
NEAR = 4.0
"""Largest ratio of the costs of two programs whose timings predict each other."""
START_SECONDS = 4.5
"""Seconds until a worker process has imported JAX, on the reference machine."""
MOST_TRACED = 4
"""Groups that are traced; a larger sweep takes the mean of these for the others."""


@dataclass(frozen=True)
class Expectation:
    """Seconds of a group: of the compilation or loading, and of a step of a run batch."""

    compile: float
    step: float
    is_cached: bool = False


def expected_minutes(
    plan: Plan, processes: int, completed: Mapping[str, int] = MappingProxyType({})
) -> float:
    """Return the expected wall time of the missing runs, compilation included.

    Compilations share the cores for any number of processes; a process loads what another has compiled.
    `completed`: steps of the runs that a stopped sweep has left unfinished.
    """
    groups = expect_groups(plan.groups, plan.runs_per_batch)
    left = [count_steps(group, plan.runs_per_batch, completed) for group in plan.groups]
    busy = sum(sum(steps) * group.step for steps, group in zip(left, groups, strict=True))
    speed = max(1, processes) * (GAIN if processes > 1 else 1.0)
    longest = max(max(steps) * each.step for steps, each in zip(left, groups, strict=True))
    at_once = min(max(1, processes), len(groups))
    loading = sum(each.compile for each in groups if each.is_cached) / at_once
    compiling = sum(each.compile for each in groups if not each.is_cached) / _cores()
    if processes:
        loading += START_SECONDS * calibrate().slowness
    if processes > len(groups):
        loading += LOAD_FRACTION * max(each.compile for each in groups) / _cores()
    return (compiling + loading + max(busy / speed, longest)) / 60


def count_steps(group: CompileGroup, runs_per_batch: int, completed: Mapping[str, int]) -> list[int]:
    """Return the number of steps that each run batch of a group has left: complete chunks."""
    chunk = chunk_length(group.steps)
    left = [-(-(group.steps - completed.get(run.key, 0)) // chunk) * chunk for run in group.runs]
    return [max(left[first : first + runs_per_batch]) for first in range(0, len(left), runs_per_batch)]


def expect_groups(groups: Sequence[CompileGroup], runs_per_batch: int) -> list[Expectation]:
    """Return the expected seconds of each group; compilation in CPU seconds.

    A function that groups share counts once, and one that an earlier sweep has compiled counts as loading.
    """
    known = [read_timing(_path(group, runs_per_batch)) for group in groups]
    unknown = [index for index, timing in enumerate(known) if "compile" not in timing]
    rate = _seconds_per_operation() if unknown else 0.0
    compiling, steps, seen = {}, {}, set()
    for index in unknown[:MOST_TRACED]:
        group = groups[index]
        operations = count_operations(*stack_shapes(group.runs[0].recipe, runs_per_batch))
        own = {name: count for name, count in operations.items() if name not in seen}
        new = sum(count for name, count in own.items() if not was_compiled(name))
        compiling[index] = rate * (new + LOAD_FRACTION * (sum(own.values()) - new))
        seen |= set(operations)
        steps[index] = _expect_step(group, runs_per_batch, tuple(operations.values()))
        timing = {"operations": float(new), "expected_step": steps[index]}
        write_timing(_path(group, runs_per_batch), timing)
    mean = statistics.fmean(compiling.values()) if compiling else 0.0
    return [
        Expectation(timing.get("load", LOAD_FRACTION * timing["compile"]), _usual_step(timing), True)
        if "compile" in timing
        else Expectation(compiling.get(index, mean), steps.get(index) or _expect_step(group, runs_per_batch))
        for index, (group, timing) in enumerate(zip(groups, known, strict=True))
    ]


def _usual_step(timing: Timing) -> float:
    """Return the measured seconds of a step, or what was expected if no sweep had more than one chunk."""
    return timing["step"] if "step" in timing else timing["expected_step"]


def _expect_step(group: CompileGroup, runs_per_batch: int, operations: Sequence[int] = ()) -> float:
    """Return the seconds of a step of a run batch; `operations` are those of `sample` and `learn`."""
    near = [timing for timing in _read_measured(runs_per_batch) if is_near(timing["cost"], group.cost)]
    if near:
        return group.cost * statistics.median(timing["step"] / timing["cost"] for timing in near)
    recipe, executed = recipe_of(group.runs[0].config), 0
    if operations:
        # Decoding repeats most of `sample` for each token, the minibatches most of `learn`.
        sampled, learned = operations
        executed = sampled * recipe.task.response_length + learned * recipe.minibatches
    work = SECONDS_PER_COST * runs_per_batch * group.cost + SECONDS_PER_EXECUTION * executed
    return calibrate().slowness * work


def _seconds_per_operation() -> float:
    """Return the seconds of one core per operation on this machine, as far as it has compiled."""
    timings = [each for each in read_timings("*") if each.get("operations") and each.get("compile_cpu")]
    rates = [timing["compile_cpu"] / timing["operations"] for timing in timings]
    now = calibrate()
    return now.contention * statistics.median(rates) if rates else now.slowness * SECONDS_PER_OPERATION


def _read_measured(runs_per_batch: int) -> list[Timing]:
    """Return all timings of batches of a size whose step was measured, of any version of the code."""
    return [timing for timing in read_timings(f"*-{runs_per_batch}") if "step" in timing]


def _cores() -> int:
    # A group has two functions, which are compiled at the same time.
    return max(1, min(2, len(os.sched_getaffinity(0))))


def is_near(cost: float, other: float) -> bool:
    """Return whether timings of one cost predict those of another; a step of a small model is overhead."""
    return max(cost, other) <= NEAR * min(cost, other)


class Stopwatch:
    """Measures the cost of compiled functions in this process, from the events of the work loop."""

    def __init__(self, plan: Plan):
        """Start at the beginning of the work on `plan`."""
        self._runs_per_batch = plan.runs_per_batch
        self._group_of = {run.key: group for group in plan.groups for run in group.runs}
        self._intervals: dict[int, list[tuple[float, float]]] = {}
        self._is_kept = {
            id(group): "compile" in read_timing(_path(group, plan.runs_per_batch)) for group in plan.groups
        }
        self._last = time.perf_counter(), time.process_time()

    def __call__(self, event: Mapping[str, Json]) -> None:
        """Record the time of an event; the first chunk and the end of a batch write a timing."""
        group = self._group_of[event["runs"][0]]  # type: ignore[index]
        now, before = (time.perf_counter(), time.process_time()), self._last
        if event["event"] == "chunk":
            interval = now[0] - before[0], now[1] - before[1]
            intervals = self._intervals.setdefault(id(group), [])
            intervals.append(interval)
            # At once, because a sweep may be killed: its functions are stored by then.
            if len(intervals) == 1:
                self._record(group, intervals)
        elif self._intervals.get(id(group)):
            self._record(group, self._intervals[id(group)])
        self._last = now

    def leave_out(self) -> None:
        """Exclude the time since the last event, which was not spent on the plan."""
        self._last = time.perf_counter(), time.process_time()

    def _record(self, group: CompileGroup, intervals: list[tuple[float, float]]) -> None:
        # The longest interval is the one in which the program was compiled. Its CPU time excludes other
        # processes, and the wait for a function that one of them compiles.
        seconds, path = [wall for wall, _ in intervals], _path(group, self._runs_per_batch)
        usual = statistics.median(seconds) if len(seconds) > 2 else min(seconds)
        chunk, timing = chunk_length(group.steps), {"compile": 0.0} | read_timing(path)
        if len(seconds) > 1:
            timing["step"] = usual / chunk
        else:
            if "expected_step" not in timing:
                timing["expected_step"] = _expect_step(group, self._runs_per_batch)
            usual = min(usual, _usual_step(timing) * chunk)
        longest, cpu = max(intervals)
        if self._is_kept[id(group)]:
            timing["load"] = longest - usual
        else:
            timing |= {"compile": longest - usual, "compile_cpu": max(0.0, cpu - usual)}
        write_timing(path, timing | {"cost": group.cost})


def _path(group: CompileGroup, runs_per_batch: int) -> Path:
    signature = without_addresses(static_signature(group.runs[0].recipe, chunk_length(group.steps)))
    digest = hashlib.sha256(f"{code_digest()} {signature}".encode()).hexdigest()[:20]
    return timing_path(f"{digest}-{runs_per_batch}")
