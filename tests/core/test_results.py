import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from simlab.core.atomic import write_atomically
from simlab.core.manifest import build_manifest, write_manifest
from simlab.core.results import Results, write_table
from simlab.studies.experiment import Experiment, ExperimentContext, execute


@pytest.mark.parametrize(
    "data",
    [
        {"step": [0, 1], "reward": np.asarray([0.5, 0.25], np.float32), "arm": ["a", "b"]},
        [{"step": 0, "reward": np.float32(0.5).item(), "arm": "a"}, {"step": 1, "reward": 0.25, "arm": "b"}],
        pd.DataFrame({"step": [0, 1], "reward": [0.5, 0.25], "arm": ["a", "b"]}),
    ],
    ids=["columns", "rows", "frame"],
)
def test_table_round_trip_opens_in_pandas(tmp_path, data):
    frame = pd.read_parquet(write_table(tmp_path, "runs", data))
    assert frame.to_dict("list") == {"step": [0, 1], "reward": [0.5, 0.25], "arm": ["a", "b"]}


def test_equal_data_gives_equal_bytes(tmp_path):
    data = {"x": np.linspace(0, 1, 1000)}
    first = write_table(tmp_path / "a", "t", data).read_bytes()
    assert write_table(tmp_path / "b", "t", data).read_bytes() == first


def test_failed_write_keeps_the_old_file_and_leaves_no_debris(tmp_path):
    path = tmp_path / "result"
    write_atomically(path, lambda file: file.write(b"old"))

    def fails(file):
        file.write(b"half of the new")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fails)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_killed_writer_leaves_a_whole_file(tmp_path):
    # The writer alternates two contents of one size; a kill at any moment must leave one of them whole.
    path = tmp_path / "result"
    code = (
        "import sys; from pathlib import Path; from simlab.core.atomic import write_atomically\n"
        "n = 0\n"
        "while True:\n"
        "    n += 1; c = bytes([65 + n % 2]) * 3_000_000\n"
        "    write_atomically(Path(sys.argv[1]), \n"
        "        lambda f: [f.write(c[i:i + 1000]) for i in range(0, len(c), 1000)])\n"
    )
    for delay in (0.02, 0.05, 0.11):
        process = subprocess.Popen([sys.executable, "-c", code, str(path)])
        while not path.exists():
            time.sleep(0.01)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        content = path.read_bytes()
        assert len(content) == 3_000_000
        assert len(set(content)) == 1


def test_files_get_the_usual_permissions(tmp_path):
    path = write_table(tmp_path, "t", {"x": [1]})
    plain = tmp_path / "plain"
    plain.touch()
    assert os.stat(path).st_mode == os.stat(plain).st_mode


def test_manifest_says_what_the_run_was(tmp_path):
    write_manifest(tmp_path, build_manifest("demo", {"format": "bf16"}, [1, 2], {"total": 0.5}, {"t": 3}))
    manifest = Results(tmp_path).manifest
    assert manifest["config"] == {"format": "bf16"}
    assert manifest["seeds"] == [1, 2]
    assert manifest["timings"] == {"total": 0.5}
    assert set(manifest) >= {"commit", "dirty", "versions", "device", "xla_flags", "tables"}
    assert manifest["versions"]["jax"].count(".") >= 2


def test_manifest_refuses_what_json_lacks(tmp_path):
    with pytest.raises(ValueError):
        write_manifest(tmp_path, {"x": float("nan")})
    assert list(tmp_path.iterdir()) == []


def _count(run: ExperimentContext) -> None:
    run.configure(rows=3)
    run.seeds([5, 5, 6])
    with run.phase("work"):
        run.table("squares", [{"n": n, "square": n * n} for n in run.track(range(3), "squares")])


def test_execute_writes_tables_then_manifest(tmp_path):
    results = execute(Experiment("count", "How many?", "none", _count, 0.1), tmp_path / "out", smoke=True)
    assert results.table("squares")["square"].tolist() == [0, 1, 4]
    manifest = results.manifest
    assert manifest["config"] == {"smoke": True, "rows": 3}
    assert manifest["seeds"] == [5, 6]
    assert manifest["tables"] == {"squares": 3}
    assert set(manifest["timings"]) == {"work", "total"}


def test_a_failed_run_is_not_a_finished_one(tmp_path):
    def fails(run: ExperimentContext) -> None:
        run.table("squares", [{"n": 1}])
        raise RuntimeError("boom")

    out = tmp_path / "out"
    execute(Experiment("count", "?", "none", _count, 0.1), out)
    with pytest.raises(RuntimeError, match="boom"):
        execute(Experiment("count", "?", "none", fails, 0.1), out)
    with pytest.raises(FileNotFoundError, match=r"manifest\.json is missing"):
        Results(out)


def _write(*names: str, fails: bool = False) -> Experiment:
    def run(run: ExperimentContext) -> None:
        for name in names:
            run.table(name, [{"n": 1}])
        if fails:
            raise RuntimeError("boom")

    return Experiment("made_up", "?", "none", run, 0.1)


def test_execute_removes_tables_of_the_earlier_run(tmp_path):
    write_table(tmp_path, "own", {"x": [1]})
    write_table(tmp_path / "sweep", "first", {"x": [1]})
    (tmp_path / "policy.npz").touch()
    execute(_write("first", "both"), tmp_path)
    results = execute(_write("both", "second"), tmp_path)
    # A file that no earlier run lists may be the user's.
    assert results.table_names == ["both", "own", "second"]
    assert (tmp_path / "sweep" / "first.parquet").is_file()
    names = {"manifest.json", "policy.npz", "sweep", *(f"{name}.parquet" for name in results.table_names)}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_execute_removes_tables_of_a_failed_run(tmp_path):
    execute(_write("first"), tmp_path)
    with pytest.raises(RuntimeError, match="boom"):
        execute(_write("second", fails=True), tmp_path)
    # What a failed run has written stays until the next one starts.
    assert [path.stem for path in tmp_path.glob("*.parquet")] == ["second"]
    assert execute(_write("third"), tmp_path).table_names == ["third"]


def test_execute_keeps_tables_it_resumes_from(tmp_path):
    first = execute(_write("first"), tmp_path)
    assert execute(_write("second"), tmp_path, resume_from=first).table_names == ["first", "second"]


def test_execute_keeps_tables_of_another_experiment(tmp_path):
    # `simlab calibrate` may write next to the tables of the probe that it reads.
    execute(_write("first"), tmp_path)
    results = execute(replace(_write("fits"), name="calibrate"), tmp_path)
    assert results.table_names == ["first", "fits"]


@pytest.mark.parametrize("text", ["{", "[]", '{"name": "made_up", "tables": 3}'])
def test_execute_replaces_a_broken_manifest(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    assert execute(_write("first"), tmp_path).manifest["tables"] == {"first": 1}


def test_missing_table_lists_those_there_are(tmp_path):
    results = execute(Experiment("count", "?", "none", _count, 0.1), tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no table 'cubes'.*\['squares'\]"):
        results.table("cubes")
    assert json.loads((tmp_path / "manifest.json").read_text())["name"] == "count"
