"""kill -9 at a random moment: the sweep goes on where it was and ends with the same bytes."""

import random
import signal
import time

import pytest

from simlab.sweeps import sweep
from tests.sweeps.small import BASE, WIDTH, finish, start, tables

MANY = {"objective": ["grpo", "gspo", "grpo+tis"], "seed": list(range(8))}


@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_a_killed_sweep_resumes(kills, tmp_path, programs):
    whole, out = tmp_path / "whole", tmp_path / "killed"
    sweep(BASE, MANY, whole, width=WIDTH, workers=0)
    moments = random.Random(kills)
    for _ in range(kills):
        process = start(out, MANY)
        # A number of finished runs and then a moment, which may be in the middle of a slice or of a file.
        target = len(list(out.glob("store/*.json"))) + moments.randint(0, 24 // kills)
        while len(list(out.glob("store/*.json"))) < target and process.poll() is None:
            time.sleep(0.01)
        time.sleep(moments.random() * 0.3)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not (out / "manifest.json").exists() or process.returncode == 0
    finish(start(out, MANY))
    assert tables(out) == tables(whole)
    assert not list(out.glob("live/*"))


@pytest.mark.slow
def test_workers_end_with_their_parent(tmp_path, reference):
    process = start(tmp_path, MANY, workers=2)
    while not list(tmp_path.glob("store/*.json")) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    finish(start(tmp_path, MANY))
    whole = tmp_path / "whole"
    sweep(BASE, MANY, whole, width=WIDTH, workers=0)
    assert tables(tmp_path) == tables(whole)
