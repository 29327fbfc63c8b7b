"""kill -9 at a random moment: the sweep goes on where it was and ends with the same bytes."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from simlab.sweeps import sweep
from simlab.sweeps.monitor import LIVE_FOLDER, remove_dead_jobs
from simlab.sweeps.result_cache import ResultCache
from tests.sweeps.small import BASE, RUNS_PER_BATCH, finish, start, tables

MANY = {"objective": ["grpo", "gspo", "grpo+tis"], "seed": list(range(8))}
# In chunks of the length that the other tests have compiled.
LONG, CHUNK = BASE | {"steps": 60}, BASE["steps"]

KILLS = 10


@pytest.mark.slow
def test_sweep_resumes_when_killed_ten_times(tmp_path, programs, monkeypatch):
    monkeypatch.setattr("simlab.sweeps.program.LONGEST_CHUNK", CHUNK)
    whole, out = tmp_path / "whole", tmp_path / "killed"
    sweep(LONG, MANY, whole, runs_per_batch=RUNS_PER_BATCH, workers=0)
    moments, stopped = random.Random(0), 0
    for _ in range(KILLS):
        process = start(out, MANY, base=LONG, chunk=CHUNK, checkpoint_seconds=0)
        # A number of finished runs and then a moment, which may be in the middle of a run batch or of a file.
        target = len(list(out.glob("store/*.json"))) + moments.randint(0, 24 // KILLS)
        while len(list(out.glob("store/*.json"))) < target and process.poll() is None:
            time.sleep(0.01)
        time.sleep(moments.random() * 0.3)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        stopped += bool(list(out.glob("unfinished/[!.]*")))
    assert stopped, "no kill came in the middle of a run batch"
    finish(start(out, MANY, base=LONG, chunk=CHUNK))
    assert tables(out) == tables(whole)
    # A kill just after a run was written leaves its checkpoint, which a later sweep removes.
    for path in out.glob("unfinished/*"):
        os.utime(path, (0, 0))
    ResultCache(out).remove_stale()
    assert not list(out.glob("unfinished/*"))
    # Half-written files, whose names begin with a dot, are nobody's and do not matter.
    assert not list(out.glob("live/[!.]*"))


def test_next_sweep_removes_a_partly_removed_job(tmp_path, monkeypatch):
    job = tmp_path / LIVE_FOLDER / "1-ab.json"
    job.parent.mkdir()
    # No process has a number that high.
    job.write_text(json.dumps({"pid": 2**31 - 2}))
    for kind in ("0.jsonl", "1.jsonl", "0.log"):
        job.with_suffix(f".{kind}").touch()
    real, left = Path.unlink, [2]

    def killed(path, missing_ok=False):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        real(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            remove_dead_jobs(tmp_path)
    remove_dead_jobs(tmp_path)
    assert not list(job.parent.iterdir())


@pytest.mark.slow
def test_workers_end_with_their_parent(tmp_path, reference):
    process = start(tmp_path, MANY, workers=2)
    while not list(tmp_path.glob("store/*.json")) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    finish(start(tmp_path, MANY))
    whole = tmp_path / "whole"
    sweep(BASE, MANY, whole, runs_per_batch=RUNS_PER_BATCH, workers=0)
    assert tables(tmp_path) == tables(whole)
