"""A worker process: `python -m simlab.sweeps.worker FOLDER JOB INDEX`.

It works until no run is missing. Its standard input is a pipe from its parent: at the end of the input, the
parent has ended, and the worker exits.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

from simlab.core.backend import enable_compile_cache
from simlab.sweeps.config import run_config
from simlab.sweeps.execute import POLL_SECONDS, work
from simlab.sweeps.forecast import Stopwatch
from simlab.sweeps.local import CLEAR, record_progress
from simlab.sweeps.own_records import receive
from simlab.sweeps.plan import PlannedRun, make_plan
from simlab.sweeps.policy_training import train_policies
from simlab.sweeps.result_cache import ResultCache

MEMORY_LIMIT = 1.2e9
"""Bytes of memory above which a worker forgets its compiled functions after a compile group.

Well below 2 GB, because the functions of the next group are loaded before the next check.
"""


def main(folder: str, job: str, index: str) -> None:
    """Work on a job until it is done."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    enable_compile_cache()
    path, number = Path(job), int(index)
    described = json.loads(path.read_text())
    sys.path[:] = described["sys_path"]
    receive(described["records"])
    runs = [PlannedRun(row["run"], run_config(row["config"]), row["arm"]) for row in described["runs"]]
    plan = make_plan(runs, described["missing"], described["runs_per_batch"])
    cache = ResultCache(Path(folder))
    train_policies(plan, cache)
    # One process compiles; the others wait for its first event and find the compiled function in the cache.
    first = path.with_suffix(f".{number % len(plan.groups)}.jsonl")
    while number >= len(plan.groups) and not (first.is_file() and first.stat().st_size):
        time.sleep(POLL_SECONDS)
    with record_progress(path, number, Stopwatch(plan)) as report:
        work(plan, cache, report, number, described["checkpoint_seconds"], MEMORY_LIMIT)


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError as error:  # a full disk, a folder that cannot be written
        print(error, file=sys.stderr)
        sys.exit(CLEAR)
