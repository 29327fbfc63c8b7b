"""Studies compute runs in their own process on one thread, or refuse; each case needs a new process."""

import os
import subprocess
import sys

import pytest

from simlab.core.backend import THREADS, limiting_children
from simlab.studies.loading import load_experiment

COUNT = """
import os, sys
from pathlib import Path

import jax

def count():
    return [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")].count("tf_XLAEigen")
"""
STUDIES = {
    "run_trials": """
from experiments.studies import stages
from tests.experiments.test_stages import CLEAR, Recorder, _trial

def make(run, arms, block):
    jax.devices()
    print(count())
    sys.exit()

stages.run_trials(Recorder(), [_trial("H7", CLEAR)], (), make)
""",
    "execute": """
from simlab.studies.experiment import Experiment, execute

def run(run):
    jax.devices()
    print(count())

execute(Experiment("trained", "?", "none", run, 1.0, on_one_thread=True), Path(sys.argv[1]))
""",
    "load_policies": """
from experiments.arms.chains import NONE
from experiments.studies import repeated_runs
from experiments.studies.runs import SMOKE, RunSpec

changes = {"warm_start": None, "objective": "grpo", "seed": 0, **SMOKE}
repeated_runs.load_policies([RunSpec(NONE, "0", 0, changes)], Path(sys.argv[1]))
print(count())
""",
}
HAS_STARTED = """
jax.devices()
os.environ["PJRT_NPROC"] = "1"  # too late
"""


def _run_study(name, tmp_path, before=""):
    if len(os.sched_getaffinity(0)) == 1:
        pytest.skip("this process has one core")
    if sys.platform != "linux":
        pytest.skip("threads have names in /proc")
    environment = {key: value for key, value in os.environ.items() if key != THREADS}
    command = [sys.executable, "-c", COUNT + before + STUDIES[name], str(tmp_path)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", STUDIES)
def test_study_computes_on_one_thread(name, tmp_path):
    answer = _run_study(name, tmp_path)
    assert answer.stdout.split() == ["1"], answer.stderr


@pytest.mark.parametrize("name", STUDIES)
def test_study_refuses_when_jax_has_more_threads(name, tmp_path):
    # Imported before JAX starts, as by the command line: the variable at the start is what counts.
    answer = _run_study(name, tmp_path, "import simlab.core.backend" + HAS_STARTED)
    assert answer.returncode != 0
    assert "training runs must be computed on one thread" in answer.stderr


def test_limiting_children_restores_the_environment(monkeypatch):
    for before in (None, "4"):
        monkeypatch.setenv(THREADS, before or "") if before else monkeypatch.delenv(THREADS, raising=False)
        with limiting_children():
            assert os.environ[THREADS] == "1"
        assert os.environ.get(THREADS) == before


@pytest.mark.parametrize(
    "name", ["hacking_dynamics", "leaderboard", "new_policies", "token_probabilities", "gpu_pairs", "real_rl"]
)
def test_experiments_that_train_have_one_thread(name):
    assert load_experiment(name).on_one_thread


@pytest.mark.parametrize("name", ["bench_step", "bench_size", "diagnosis_real"])
def test_benchmarks_may_use_all_cores(name):
    assert not load_experiment(name).on_one_thread


def test_command_names_the_variable_that_asks_for_more_threads(tmp_path):
    if len(os.sched_getaffinity(0)) == 1:
        pytest.skip("this process has one core")
    command = [sys.executable, "-m", "simlab", "run", "moe_dynamics", "--smoke", "--out", str(tmp_path)]
    environment = {**os.environ, THREADS: "4"}
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert "PJRT_NPROC must be 1 or unset for training runs, got 4" in answer.stderr
    assert "Traceback" not in answer.stderr
