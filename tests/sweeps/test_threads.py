"""Runs are computed on one thread, so that their bits do not depend on the number of cores."""

import json
import os
import subprocess
import sys

import pytest

from simlab.sweeps import sweep
from tests.sweeps.small import BASE, tables

MANY_TOKENS = BASE | {"prompts_per_step": 64, "group_size": 16}
"""Enough for threads to divide the sum of a weight's gradient."""

ASK = """
import sys
import jax
from simlab.core.backend import compute_on_one_thread
if sys.argv[1] == "started":
    jax.devices()
print(compute_on_one_thread())
"""
AFTER_JAX = """
import json, sys
import jax
from simlab.sweeps import sweep
jax.devices()
sweep(json.loads(sys.argv[1]), {"seed": [0, 1]}, sys.argv[2], runs_per_batch=2, workers=0)
"""


@pytest.mark.parametrize(
    ("state", "chosen", "expected"),
    [("new", None, True), ("started", None, False), ("started", "1", True), ("new", "4", False)],
)
def test_one_thread_unless_jax_has_started_with_more(state, chosen, expected):
    if len(os.sched_getaffinity(0)) == 1:
        pytest.skip("this process has one core")
    environment = {name: value for name, value in os.environ.items() if name != "PJRT_NPROC"}
    if chosen is not None:
        environment["PJRT_NPROC"] = chosen
    command = [sys.executable, "-c", ASK, state]
    answer = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    assert answer.strip() == str(expected)


@pytest.mark.slow
def test_run_bytes_do_not_depend_on_threads(tmp_path):
    sweep(MANY_TOKENS, {"seed": [0, 1]}, tmp_path / "one", runs_per_batch=2, workers=0)
    command = [sys.executable, "-c", AFTER_JAX, json.dumps(MANY_TOKENS), str(tmp_path / "eight")]
    subprocess.run(command, env={**os.environ, "PJRT_NPROC": "8"}, check=True, capture_output=True)
    assert tables(tmp_path / "eight") == tables(tmp_path / "one")
