"""Curves of TensorBoard's event files and trackio's databases; hostile files give one error."""

import json
import sqlite3
import struct
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simlab.diagnosis.curve_files import find_curves
from simlab.diagnosis.diagnosis import diagnose
from simlab.diagnosis.event_file import read_event_file
from simlab.diagnosis.log_curves import read_curves
from simlab.diagnosis.trackio_file import read_trackio_file

TAG = "rollout_corr/k3_kl"


def _varint(value):
    digits = []
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def _message(number, content):
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _event(step, tag, value):
    item = _message(1, tag.encode()) + b"\x15" + struct.pack("<f", value)
    body = b"\x09" + struct.pack("<d", 1.0) + b"\x10" + _varint(step) + _message(5, _message(1, item))
    return struct.pack("<Q", len(body)) + b"\0" * 4 + body + b"\0" * 4


def _write_events(folder, steps=12):
    path = folder / "events.out.tfevents.1.host"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        b"".join(_event(step, TAG, 1e-3) + _event(step, "reward", step / 8) for step in range(steps))
    )
    return path


def _write_database(path, runs):
    with closing(sqlite3.connect(path)) as database:
        database.execute(
            "CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_name TEXT, step INTEGER, metrics TEXT)"
        )
        database.executemany(
            "INSERT INTO metrics (run_name, step, metrics) VALUES (?, ?, ?)",
            [
                (run, step, json.dumps({TAG: 1e-3 * (1 + run), "reward": 0.5}))
                for run in range(runs)
                for step in range(9)
            ],
        )
        database.commit()
    return path


def test_event_file_gives_scalars_by_step(tmp_path):
    _write_events(tmp_path / "run")
    rows, problems = read_curves(find_curves(tmp_path))
    assert not problems
    assert [row["step"] for row in rows] == list(range(12))
    assert rows[4]["reward"] == 0.5
    assert rows[4]["mean_abs_log_rho"] == pytest.approx(np.sqrt(2e-3), rel=1e-6)
    assert diagnose(tmp_path).causes[0].cause == "unknown"


def test_truncated_event_file_keeps_its_begin(tmp_path):
    path = _write_events(tmp_path)
    path.write_bytes(path.read_bytes()[:-5])
    problems = []
    assert len(list(read_event_file(path, problems))) == 12
    assert "truncated" in str(problems[0])


def test_trackio_database_gives_newest_run(tmp_path):
    _write_database(tmp_path / "project.db", 2)
    rows, problems = read_curves(find_curves(tmp_path))
    assert len(rows) == 9
    assert rows[0]["k3_kl"] == 2e-3
    assert "2 runs: only the newest" in str(problems[0])


@pytest.mark.parametrize("kind", ["CREATE VIEW metrics AS SELECT 1", "CREATE TABLE other (id)"])
def test_database_of_another_program_is_rejected(tmp_path, kind):
    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        database.execute(kind)
    with pytest.raises(ValueError, match="no table metrics"):
        list(read_trackio_file(tmp_path / "a.db", []))


def test_openrlhf_metrics_are_curves(tmp_path):
    lines = [json.dumps({"vllm_kl": 0.02, "global_step": step}) for step in range(8)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    rows, _ = read_curves(find_curves(tmp_path))
    assert rows[0]["mean_abs_log_rho"] == pytest.approx(0.2)


def test_token_logs_are_preferred_to_curves(tmp_path):
    _write_events(tmp_path)
    (tmp_path / "log.jsonl").write_text('{"logp_train": [-1.0], "logp_infer": [-1.0]}\n')
    assert find_curves(tmp_path) == []


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=300), st.integers(0, 600), st.sampled_from(["events.out.tfevents.1", "a.db"]))
def test_curve_files_survive_any_bytes(noise, place, name):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        if name.endswith("db"):
            content = _write_database(path, 1).read_bytes()
        else:
            content = _write_events(Path(folder), 6).read_bytes()
        place %= len(content)
        (Path(folder) / name).write_bytes(content[:place] + noise + content[place + len(noise) :])
        try:
            rows, _ = read_curves(find_curves(path))
        except ValueError as error:
            assert str(error).isprintable()  # noqa: PT017 - either outcome is allowed
        else:
            assert np.isfinite([row["mean_abs_log_rho"] for row in rows]).all()
