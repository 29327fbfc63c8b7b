"""A worker process: `python -m simlab.sweeps.worker FOLDER JOB INDEX`.

It keeps to the core `$SIMLAB_CORE` if there is one, measures its first program, waits for a line on its
standard input, and works until nothing is missing. The end of the input is that of its parent, and its own.
"""

import json
import os
import sys
import threading
from pathlib import Path

from simlab.sweeps.compile_cache import keep_programs
from simlab.sweeps.config import run_config
from simlab.sweeps.execute import calibrate, work
from simlab.sweeps.local import CLEAR, write_event
from simlab.sweeps.own_records import receive
from simlab.sweeps.plan import PlannedRun, make_plan
from simlab.sweeps.store import Store


def main(folder: str, job: str, index: str) -> None:
    """Work on a job until it is done."""
    # Before JAX makes its pool of threads, which has one for every core it may use.
    if "SIMLAB_CORE" in os.environ:
        os.sched_setaffinity(0, {int(os.environ["SIMLAB_CORE"])})
    keep_programs()
    path, number = Path(job), int(index)
    described = json.loads(path.read_text())
    sys.path[:] = described["sys_path"]
    receive(described["records"])
    runs = [PlannedRun(row["run"], run_config(row["config"]), row["arm"]) for row in described["runs"]]
    plan, store = make_plan(runs, described["missing"], described["width"]), Store(Path(folder))
    with open(path.with_suffix(f".{number}.jsonl"), "a") as events:
        # One process per program: the others find it in the cache.
        if number < len(plan.groups):
            measured = calibrate(plan.groups[number], plan.width, store)
            write_event(events, {"event": "calibrated", **measured})
        if not sys.stdin.readline():
            return
        threading.Thread(target=_end_with_parent, daemon=True).start()
        every = described["checkpoint_seconds"]
        work(plan, store, lambda event: write_event(events, event), number, every)


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError as error:  # a full disk, a folder that cannot be written
        print(error, file=sys.stderr)
        sys.exit(CLEAR)
