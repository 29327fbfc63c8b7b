"""What can go wrong with a disk, a clock and a config: one clear error, nothing lost, nothing twice."""

import resource
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simlab.sweeps import sweep
from simlab.sweeps.grids import grid
from simlab.sweeps.plan import expand
from simlab.sweeps.result_cache import DamagedError
from tests.sweeps.small import BASE, GRID, RUNS_PER_BATCH, tables

FIELDS = [
    *BASE,
    "seed",
    "warm_start",
    "schedule",
    "staleness",
    "old_log_probs",
    "sampling",
    "critic",
    "gradient_site",
    "optimizer.learning_rate",
    "sampling.temperature",
    "model.hidden_size",
    "task.difficulty",
    "objective.clip_low",
    "engines.infer",
    "entropy_coeff",
    "nonsense",
    "..",
    "",
]
HOSTILE = st.one_of(
    st.sampled_from(
        [10**400, -(10**400), 2**63, -1, "../../etc/passwd", "/etc/passwd", "grpo+", "/", "f32/"]
    ),
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(),
    st.text(),
    st.just("a" * 3000),
    st.none(),
    st.booleans(),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.sampled_from(["name", "clip_low", "x"]), st.one_of(st.none(), st.text(), st.floats())),
)


@settings(max_examples=200)
@given(field=st.sampled_from(FIELDS), value=HOSTILE)
def test_hostile_config_is_a_run_or_a_short_error(field, value):
    said = ""
    try:
        (run,) = expand(BASE, grid({field: [value]}), RUNS_PER_BATCH)
        assert len(run.key) == 20
    except ValueError as error:
        said = str(error)
    assert len(said) < 2500  # the longest lists all engine pairs


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.hidden_size": -1}, "model.hidden_size must be .*, got -1"),
        ({"model.hidden_size": 0}, "model.hidden_size must be .*, got 0"),
        ({"optimizer.learning_rate": 10**400}, "optimizer.learning_rate must be"),
        ({"optimizer.learning_rate": 1e308}, "optimizer.learning_rate must be"),
        ({"objective.clip_low": []}, "objective"),
        ({"warm_start": "a" * 10_000}, "warm_start: no file"),
        ({"staleness": 2**63}, "staleness must be"),
    ],
)
def test_expand_rejects_extreme_numbers(changes, message):
    with pytest.raises(ValueError, match=message):
        expand(
            BASE | {k: v for k, v in changes.items() if "." not in k},
            grid({k: [v] for k, v in changes.items()}),
            2,
        )


def small_sweep(out):
    return sweep(BASE, GRID, out, runs_per_batch=RUNS_PER_BATCH, workers=0)


def test_sweep_loses_nothing_when_disk_is_full(reference, tmp_path):
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Files of some kilobytes each: the limit is met in the middle of a run's tables.
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, unlimited[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            small_sweep(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    kept = [path for path in (tmp_path / "store").glob("*") if not path.name.startswith(".")]
    assert all(path.stat().st_size < 9000 for path in kept)
    small_sweep(tmp_path)
    assert tables(tmp_path) == tables(reference.folder)


def test_read_only_folder_is_one_error():
    # Not even root writes there.
    with pytest.raises(OSError, match="/proc/simlab"):
        small_sweep("/proc/simlab")


@pytest.mark.parametrize("name", ["json", "steps.parquet", "vectors.parquet"])
@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_damaged_file_recomputes_its_run_only(reference, tmp_path, name, damage):
    small_sweep(tmp_path)
    path = sorted((tmp_path / "store").glob(f"[0-9a-f]*.{name}"))[2]
    whole = path.read_bytes()
    half = len(whole) // 2
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(whole[:half])
    else:
        path.write_bytes(whole[:half] + bytes([whole[half] ^ 1]) + whole[half + 1 :])
    if (name, damage) != ("json", "gone"):  # a run without its record is not there
        with pytest.raises(DamagedError, match=path.name):
            small_sweep(tmp_path)
        path.with_name(f"{path.name.split('.')[0]}.json").unlink()
    others = {each: each.stat().st_mtime_ns for each in path.parent.glob("[0-9a-f]*.json")}
    small_sweep(tmp_path)
    assert tables(tmp_path) == tables(reference.folder)
    assert all(each.stat().st_mtime_ns == written for each, written in others.items())


def test_sweep_ignores_a_clock_going_backwards(reference, tmp_path, monkeypatch):
    sweep(BASE, {**GRID, "seed": [0]}, tmp_path, runs_per_batch=RUNS_PER_BATCH, workers=0)
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - 10**18)
    monkeypatch.setattr(time, "time", lambda: real() / 1e9 - 1e9)
    small_sweep(tmp_path)
    assert tables(tmp_path) == tables(reference.folder)
