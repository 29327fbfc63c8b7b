"""What a running sweep shows, from its folder."""

import json
import os
import platform

import numpy as np
import pytest
from rich.console import Console

from simlab.sweeps.monitor import ArmProgress, Monitor, line_of, remove_dead_jobs, table_of
from simlab.sweeps.watch import watch

JOB = "1-0123abcd"


def write_job(folder, events, pid=None, host=None):
    live = folder / "live"
    live.mkdir()
    runs = [{"run": key, "arm": arm, "config": {}} for key, arm in (("a", "x"), ("b", "x"), ("c", "y"))]
    described = {
        "pid": pid or os.getpid(),
        "host": host or platform.node(),
        "runs_per_batch": 2,
        "missing": ["a", "b", "c"],
        "runs": runs,
    }
    (live / f"{JOB}.json").write_text(json.dumps(described))
    (live / f"{JOB}.0.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events) + '{"half')


def chunk(runs, step, reward):
    return {
        "event": "chunk",
        "runs": runs,
        "step": [step] * len(runs),
        "reward": reward,
        "rms_log_rho": reward,
    }


def test_monitor_averages_the_runs_of_an_arm(tmp_path):
    begun_again = [chunk(["a", "b"], 2, [[1, 1], [3, 3]]), chunk(["a", "b"], 4, [[2, 2], [4, 4]])]
    write_job(tmp_path, [chunk(["a"], 2, [[9, 9]]), *begun_again])
    arms = Monitor(tmp_path).poll()
    assert list(arms["x"].mean("reward")) == [2, 2, 3, 3]
    assert arms["x"].recent("reward") == 2.5
    assert (arms["x"].runs, arms["x"].finished, arms["y"].runs) == (2, 0, 1)
    assert np.isnan(arms["y"].recent("reward"))


def test_remove_dead_jobs(tmp_path):
    write_job(tmp_path, [], pid=2**22 - 1)
    remove_dead_jobs(tmp_path)
    assert not list((tmp_path / "live").iterdir())


def test_jobs_of_another_host_stay(tmp_path):
    write_job(tmp_path, [], pid=2**22 - 1, host="elsewhere")
    remove_dead_jobs(tmp_path)
    assert list((tmp_path / "live").iterdir())


def test_table_of_shows_whole_labels_at_80_columns():
    swept = ("grpo+tis", "grpo+mis", "gspo+seq_tis")
    labels = [
        f"f32/vllm-bf16+fp8kv, objective={name}, learning_rate=0.000{n}" for n, name in enumerate(swept)
    ]
    console = Console(width=80)
    with console.capture() as capture:
        console.print(table_of({label: ArmProgress(runs=8) for label in labels}))
    rows = [line.split("│") for line in capture.get().splitlines() if line.startswith("│")]
    shown = "".join("".join(row[1].split()) for row in rows)
    assert "…" not in capture.get()
    assert shown == "".join("".join(label.split()) for label in labels)


def test_line_of_has_counts_and_two_numbers():
    curves = {"reward": [np.array([0.25, 0.75])], "rms_log_rho": [np.array([0.1])]}
    arms = {
        f"f32/bf16, learning_rate=0.000{n}": ArmProgress(4, 2, diverged=n % 2, dead=1, curves=curves)
        for n in range(9)
    }
    expected = "18/36 runs, 18 run-steps, 4 diverged, 9 dead; reward 0.50, RMS log rho 0.100 nats"
    assert line_of(arms) == expected
    assert line_of({"x": ArmProgress(2)}) == "0/2 runs; no step finished yet"


def test_watch_ends_with_a_killed_sweep(tmp_path, capsys):
    write_job(tmp_path, [chunk(["a"], 2, [[9, 9]])], pid=2**22 - 1)
    watch(tmp_path, every=3600)
    assert "x" in capsys.readouterr().out


def test_watch_shows_a_finished_sweep_once(reference, tmp_path, capsys):
    watch(reference.folder, file=tmp_path / "curves.png")
    shown = capsys.readouterr().out
    assert "grpo+tis" in shown
    assert "3/3" in shown
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(FileNotFoundError, match="no finished run"):
        watch(tmp_path)
