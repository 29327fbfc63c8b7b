"""A sweep that was stopped goes on from its checkpoints; what they hold changes no byte of a run."""

import numpy as np
import pytest

from simlab.core.backend import THREADS
from simlab.sweeps import execute, sweep
from simlab.sweeps.local import VISIBLE_DEVICES, worker_environment
from simlab.sweeps.result_cache import ResultCache
from simlab.training import checkpoints
from simlab.training.checkpoints import (
    DamagedCheckpointError,
    UnfinishedRun,
    load_progress,
    save_progress,
    save_tree,
)
from tests.sweeps.small import BASE, RUNS_PER_BATCH, tables

LONG = BASE | {"steps": 8}
SEEDS = {"seed": [0, 1, 2]}


@pytest.fixture(scope="module", autouse=True)
def _short_chunks():
    """Four chunks a run, of the length that the other tests have compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simlab.sweeps.program.LONGEST_CHUNK", BASE["steps"])
        yield


@pytest.fixture(scope="module")
def whole(programs, tmp_path_factory):
    return sweep(LONG, SEEDS, tmp_path_factory.mktemp("whole"), runs_per_batch=RUNS_PER_BATCH, workers=0)


def chunks_of(out, monkeypatch, stop_after=None, over=SEEDS):
    """How many chunks a sweep computes until it ends, or is stopped after some."""
    real, made = execute.train, []

    def count(chunk):
        if len(made) == stop_after:
            raise KeyboardInterrupt
        made.append(chunk.step)

    def counted(recipe, state, steps, callbacks=(), **options):
        return real(recipe, state, steps, [count, *callbacks], **options)

    with monkeypatch.context() as patch:
        patch.setattr(execute, "train", counted)
        try:
            sweep(LONG, over, out, runs_per_batch=RUNS_PER_BATCH, workers=0, checkpoint_seconds=0)
        except KeyboardInterrupt:
            assert stop_after is not None
    return len(made)


def test_sweep_resumes_from_checkpoints(whole, tmp_path, monkeypatch):
    # Two run batches of four chunks each: it is stopped in the last chunk of the first, and again in the
    # second.
    assert chunks_of(tmp_path, monkeypatch, stop_after=3) == 3
    unfinished = list(tmp_path.glob("unfinished/*.npz"))
    assert len(unfinished) == RUNS_PER_BATCH
    assert {ResultCache(tmp_path).steps_completed(path.stem) for path in unfinished} == {6}
    assert chunks_of(tmp_path, monkeypatch, stop_after=3) == 3
    assert chunks_of(tmp_path, monkeypatch) == 2
    assert tables(tmp_path) == tables(whole.folder)
    assert not list(tmp_path.glob("unfinished/*"))


def test_runs_of_different_ages_share_a_slice(whole, tmp_path, monkeypatch):
    # Seed 1 alone has made two chunks when it is joined by seed 0, which has made none.
    assert chunks_of(tmp_path, monkeypatch, stop_after=2, over={"seed": [1]}) == 2
    chunks_of(tmp_path, monkeypatch)
    assert tables(tmp_path) == tables(whole.folder)


def test_damaged_checkpoint_restarts_its_run_only(whole, tmp_path, monkeypatch, capsys):
    chunks_of(tmp_path, monkeypatch, stop_after=2)
    path = min(tmp_path.glob("unfinished/*.npz"))
    path.write_bytes(path.read_bytes()[:-1])
    assert ResultCache(tmp_path).steps_completed(path.stem) == 0
    chunks_of(tmp_path, monkeypatch)
    assert f"{path.name} cannot be read" in capsys.readouterr().err.replace("\n", "")
    assert tables(tmp_path) == tables(whole.folder)


def test_checkpoint_of_another_processor_family_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "processor_family", lambda: "Other, cpu family 1, model 2")
    path = save_progress(tmp_path / "run.npz", UnfinishedRun({}, {}))
    monkeypatch.undo()
    with pytest.raises(ValueError, match="was written on Other, cpu family 1, model 2; this is"):
        load_progress(path)


def test_a_checkpoint_of_something_else_is_damaged(tmp_path):
    path = save_tree(tmp_path / "policy.npz", {"weights": np.zeros(2)})
    with np.load(path) as stored:
        save_progress(tmp_path / "run.npz", UnfinishedRun({}, {}))
        with np.load(tmp_path / "run.npz") as run:
            np.savez(tmp_path / "mixed.npz", **run, **stored)
    with pytest.raises(DamagedCheckpointError, match="is not of an unfinished run"):
        load_progress(tmp_path / "mixed.npz")


def test_worker_environment_assigns_one_thread_or_device(monkeypatch):
    monkeypatch.setattr("jax.local_device_count", lambda: 3)
    assert worker_environment({"A": "b", THREADS: "4"}, 1, "cpu") == {"A": "b", THREADS: "1"}
    seen = [worker_environment({}, index, "gpu") for index in range(3)]
    assert [each[VISIBLE_DEVICES] for each in seen] == ["0", "1", "2"]
    assert all(each["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false" for each in seen)
    shared = [worker_environment({VISIBLE_DEVICES: "5,GPU-ab"}, i, "gpu")[VISIBLE_DEVICES] for i in range(2)]
    assert shared == ["5", "GPU-ab"]
    assert worker_environment({"A": "b"}, 1, "tpu") == {"A": "b"}
