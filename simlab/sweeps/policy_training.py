"""Initial policies that a sweep trains before its runs: which are missing, and how long they take.

A process trains one policy at a time, on one thread; the processes of a sweep share the policies. Timings are
stored for the forecast.
"""

import hashlib
import statistics
import time
from pathlib import Path

from simlab.core.json_value import Json
from simlab.core.progress import console
from simlab.sweeps.code_version import code_digest
from simlab.sweeps.config import recipe_of
from simlab.sweeps.config_reader import read
from simlab.sweeps.execute import POLICIES, POLL_SECONDS, build_member
from simlab.sweeps.machine_speed import calibrate
from simlab.sweeps.plan import Plan, PlannedRun, weight_count
from simlab.sweeps.result_cache import ResultCache
from simlab.sweeps.start import policy_file
from simlab.sweeps.timings import read_timing, read_timings, timing_path, write_timing
from simlab.training.warm_start import WarmStart

SECONDS_PER_COST = 8.0e-11
"""Of supervised training on the reference machine, per unit of `training_cost`."""
COMPILE_SECONDS = 6.0
"""Of the function that trains a policy, on the reference machine."""
KIND = "policy"


def missing_policies(plan: Plan, cache: ResultCache) -> dict[Path, PlannedRun]:
    """Return the file of every initial policy that `plan` has to train first, with a run that needs it."""
    found: dict[Path, PlannedRun] = {}
    for run in (run for group in plan.groups for run in group.runs):
        start, recipe = run.config.warm_start, recipe_of(run.config)
        if start is not None and "sha256" not in start:
            path = policy_file(start, recipe.task, recipe.model, cache.folder / POLICIES)
            if not path.is_file():
                found.setdefault(path, run)
    return found


def training_cost(run: PlannedRun) -> float:
    """Return the relative cost of the supervised training of a run: weights times tokens of all updates."""
    recipe, how = recipe_of(run.config), read(WarmStart, _without_seed(run), "warm_start").record
    tokens = recipe.task.prompt_length + recipe.task.response_length
    return float(weight_count(recipe.model)) * how.steps * how.batch * tokens


def expected_training_minutes(plan: Plan, cache: ResultCache, processes: int = 1) -> float:
    """Return the expected wall time until `processes` have trained the missing initial policies."""
    rates = [each["seconds"] / each["cost"] for each in read_timings(f"{KIND}-*")]
    # Without a timing of this training that of others counts, without any that of a reference machine.
    rate = statistics.median(rates) if rates else None
    seconds, compiled = 0.0, set[str]()
    missing = missing_policies(plan, cache)
    for run in missing.values():
        usual = (rate or calibrate().slowness * SECONDS_PER_COST) * training_cost(run)
        seconds += read_timing(_path(run)).get("seconds", usual) / max(1, min(processes, len(missing)))
        if (signature := _signature(run)) not in compiled:
            seconds += calibrate().slowness * COMPILE_SECONDS
            compiled.add(signature)
    return seconds / 60


def train_policies(plan: Plan, cache: ResultCache) -> None:
    """Train every missing initial policy that no other process trains, until none is missing."""
    total = len(missing_policies(plan, cache))
    while missing := missing_policies(plan, cache):
        worked = False
        for path, run in missing.items():
            seconds = train_policy(path, run, cache)
            worked = worked or seconds is not None
            if seconds:
                left = sum(not path.is_file() for path in missing)
                number = f"initial policy {total - left} of {total}"
                console.print(f"{number} trained: {seconds:.0f} s", highlight=False)
        if not worked:
            time.sleep(POLL_SECONDS)


def train_policy(path: Path, run: PlannedRun, cache: ResultCache) -> float | None:
    """Train the initial policy of a run and return the seconds; None if another process is training it."""
    if not cache.acquire([path.stem], 1):
        return None
    try:
        if path.is_file():  # another process has trained it since
            return 0.0
        began = time.perf_counter()
        build_member(run, cache)
        seconds = time.perf_counter() - began
    finally:
        cache.release([path.stem])
    # The time of the first one includes compilation.
    least = min(seconds, read_timing(_path(run)).get("seconds", seconds))
    write_timing(_path(run), {"seconds": least, "cost": training_cost(run)})
    return seconds


def _without_seed(run: PlannedRun) -> dict[str, Json]:
    return {name: value for name, value in (run.config.warm_start or {}).items() if name != "seed"}


def _signature(run: PlannedRun) -> str:
    recipe = recipe_of(run.config)
    return repr((recipe.task, recipe.model, sorted(_without_seed(run).items())))


def _path(run: PlannedRun) -> Path:
    digest = hashlib.sha256(f"{code_digest()} {_signature(run)}".encode()).hexdigest()[:20]
    return timing_path(f"{KIND}-{digest}")
