"""One folder of compiled programs for all tests of sweeps, so that processes compile each only once."""

import os

import pytest

from simlab.core.backend import VARIABLE
from simlab.sweeps import SweepResult, sweep
from tests.compiling import is_quick
from tests.sweeps.small import BASE, GRID, RUNS_PER_BATCH


@pytest.fixture(scope="session", autouse=True)
def programs(tmp_path_factory):
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = before or str(tmp_path_factory.mktemp("programs"))
    yield
    if before is None:
        del os.environ[VARIABLE]


@pytest.fixture(scope="session")
def reference(programs, tmp_path_factory) -> SweepResult:
    """The small sweep, computed in this process without any interruption."""
    assert not is_quick(), "processes that tests start compile as in a run"
    return sweep(BASE, GRID, tmp_path_factory.mktemp("reference"), runs_per_batch=RUNS_PER_BATCH, workers=0)
