"""A real Ray cluster of two nodes on loopback: a node dies in mid-sweep, then the driver; same bytes."""

import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.engines_real.frameworks import ROOT, interpreter
from tests.sweeps.small import BASE, RUNS_PER_BATCH, SCRIPT, tables

pytestmark = pytest.mark.engines

GRID = {"objective": ["grpo", "gspo", "grpo+tis"], "seed": list(range(8))}
# Long enough that a run batch is under way when something dies.
LONG = BASE | {"steps": 80}
PATIENCE = 600


class Cluster:
    """Nodes of one core each, as process groups that can be killed."""

    def __init__(self, python: str, folder: Path):
        self.ray, self.folder = str(Path(python).with_name("ray")), folder
        # A socket's path may have 107 bytes, and pytest's folders are long.
        self.sockets = tempfile.mkdtemp(prefix="ray")
        self.port = random.randint(20_000, 50_000)
        self.environment = os.environ | {"PYTHONPATH": str(ROOT), "SIMLAB_CACHE": str(folder / "cache")}
        self.nodes: list[subprocess.Popen] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def add(self) -> subprocess.Popen:
        head = ["--head", f"--port={self.port}", "--include-dashboard=false", f"--temp-dir={self.sockets}"]
        where = [f"--address={self.address}"] if self.nodes else head
        command = [self.ray, "start", "--block", "--num-cpus=1", "--node-ip-address=127.0.0.1", *where]
        log = open(self.folder / f"node{len(self.nodes)}.log", "wb")  # noqa: SIM115
        with log:
            node = subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
        self.nodes.append(node)
        return node

    def kill(self, node: subprocess.Popen) -> None:
        if node.poll() is None:
            os.killpg(node.pid, signal.SIGKILL)
        node.wait()


@pytest.fixture
def python():
    return interpreter("ray")


@pytest.fixture
def cluster(python, tmp_path):
    cluster = Cluster(python, tmp_path)
    cluster.add()
    yield cluster
    for node in cluster.nodes:
        cluster.kill(node)
    shutil.rmtree(cluster.sockets, ignore_errors=True)


def start(python: str, cluster: Cluster, out: Path, **changes) -> subprocess.Popen:
    given = {"base": LONG, "over": GRID, "out": str(out), "runs_per_batch": RUNS_PER_BATCH} | changes
    return subprocess.Popen(
        [python, "-c", SCRIPT, json.dumps(given)],
        env=cluster.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def finish(process: subprocess.Popen) -> None:
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said.decode()


def finished(out: Path) -> int:
    return len(list(out.glob("store/*.json")))


def wait_for(condition, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, process.stdout.read().decode()
        assert time.monotonic() < deadline, "nothing moves"
        time.sleep(0.02)


def test_ray_sweep_equals_local_when_node_and_driver_die(python, cluster, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "out"
    finish(start(python, cluster, whole, workers=0))
    second = cluster.add()
    # A checkpoint after every chunk: what comes back is a segment of a run batch more often than a whole one.
    how = {"executor": "ray", "address": cluster.address, "checkpoint_seconds": 0}
    driver = start(python, cluster, out, **how)
    wait_for(lambda: finished(out) >= 2, driver)
    cluster.kill(second)
    at_death = finished(out)
    wait_for(lambda: finished(out) >= at_death + 2, driver)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.communicate()
    assert finished(out) < 24, "the sweep was over before anything could die"
    finish(start(python, cluster, out, **how))
    assert tables(out) == tables(whole)


def test_no_cluster_is_one_clear_error(python, cluster, tmp_path):
    process = start(python, cluster, tmp_path / "none", executor="ray", address="127.0.0.1:1")
    said = process.communicate(timeout=PATIENCE)[0].decode()
    assert process.returncode != 0
    assert "no Ray cluster at 127.0.0.1:1" in said
    assert not list((tmp_path / "none").glob("store/*.json"))
