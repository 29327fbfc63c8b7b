"""Logs of other frameworks, padding, renamed columns and curves; the readers survive any input."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from simlab.cli import app
from simlab.diagnosis import read_log
from simlab.diagnosis.curve_files import find_curves
from simlab.diagnosis.diagnosis import diagnose
from simlab.diagnosis.injected_faults import generate_log
from simlab.diagnosis.log_curves import read_curves
from simlab.diagnosis.log_writer import write_log
from tests.diagnosis.torch_files import Tensor, torch_save
from tests.tolerances import assert_exact


def _write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


NEMO = {
    "token_ids": [[5, 6, 7, 8, 0]],
    "token_loss_mask": [[0, 0, 1, 1, 0]],
    "sample_loss_mask": [1.0],
    "advantages": [[0.5, 0.5, 0.5, 0.5, 0.5]],
    "generation_logprobs": [[0.0, 0.0, -0.6, -0.7, 0.0]],
    "prev_logprobs": [[0.0, -3.0, -0.5, -0.7, 0.0]],
    "rewards": [1.0],
    "input_lengths": [4],
    "idx": 0,
}


def test_nemo_rl_lists_of_one_are_read(tmp_path):
    skipped = NEMO | {"sample_loss_mask": [0.0], "idx": 1}
    path = _write_lines(tmp_path / "train_data_step12.jsonl", [NEMO, skipped])
    log = read_log(path).log
    assert_exact(log.step, np.array([12, 12]))
    real = log.drop_masked()
    assert_exact(real.lengths, np.array([2, 0]))
    assert_exact(real.ids, np.array([7, 8]))
    assert_exact(real.logp_train, np.float32([-0.5, -0.7]))


def test_prime_rl_exports_are_read_from_step_folders(tmp_path):
    row = {
        "schema_version": 1,
        "step": 3,
        "rank": 0,
        "micro_step": 1,
        "token_ids": [4, 5, 6],
        "loss_mask": [0, 1, 1],
        "inference_logprobs": [None, -0.5, -0.6],
        "trainer_logprobs": [None, -0.5, -0.7],
        "advantages": [1.0, 1.0, 1.0],
    }
    for rank in range(2):
        _write_lines(tmp_path / "token_exports" / "step_3" / f"rank_{rank}.jsonl", [row])
    log = read_log(tmp_path).log
    assert_exact(log.micro_batch, np.array([1, 1]))
    assert_exact(log.drop_masked().logp_train, np.float32([-0.5, -0.7] * 2))


def test_miles_loss_dump_is_read(tmp_path):
    content = {
        "train_log_probs": [Tensor(np.float32([-1.0, -2.0]))],
        "old_log_probs": [Tensor(np.float32([-1.1, -2.0]))],
        "rollout_log_probs": [Tensor(np.float32([-1.2, -2.0]))],
        "local_loss_mask": [[1, 1]],
    }
    log = read_log(torch_save(tmp_path / "rank_0_call_0.pt", content)).log
    assert log.logp is not None
    assert_exact(log.logp, np.float32([-1.0, -2.0]))
    assert_exact(log.logp_train, np.float32([-1.1, -2.0]))


def test_slime_samples_are_read(tmp_path):
    sample = {
        "tokens": [9, 5, 6],
        "response_length": 2,
        "loss_mask": [1, 1],
        "rollout_log_probs": [-0.1, -0.2],
        "log_probs": [-0.1, -0.3],
        "reward": 1.0,
    }
    log = read_log(torch_save(tmp_path / "4.pt", {"format_version": 2, "samples": [sample] * 2})).log
    assert_exact(log.ids, np.array([5, 6, 5, 6]))
    assert_exact(log.logp_train, np.float32([-0.1, -0.3] * 2))


def test_unmasked_padding_is_reported_and_dropped(tmp_path):
    log = generate_log("no_fault", 0, 0, sequences=8)
    width = int(log.lengths.max())
    ends = np.cumsum(log.lengths)
    rows = []
    for start, end in zip(ends - log.lengths, ends, strict=True):
        padding = [0.0] * int(width - (end - start))
        rows.append(
            {name: getattr(log, name)[start:end].tolist() + padding for name in ("logp_train", "logp_infer")}
        )
    read = read_log(_write_lines(tmp_path / "padded.jsonl", rows))
    assert "dropped as padding" in str(read.problems[0])
    assert_exact(read.log.drop_masked().lengths, log.lengths)


def test_padding_of_one_engine_is_reported_and_dropped(tmp_path):
    """verl pads the rollout's log-probs with -1; the trainer scores the padding."""
    rng, rows, lengths = np.random.default_rng(0), [], np.arange(8) + 5
    for length in lengths:
        train = -rng.exponential(1.0, 16)
        infer = np.where(np.arange(16) < length, train + 0.01, -1.0)
        rows.append({"old_log_probs": train.tolist(), "rollout_log_probs": np.minimum(infer, 0).tolist()})
    read = read_log(_write_lines(tmp_path / "padded.jsonl", rows))
    assert "logp_infer -1" in str(read.problems[0])
    assert "dropped as padding" in str(read.problems[0])
    assert_exact(read.log.drop_masked().lengths, lengths)


@pytest.mark.parametrize("rows_with_prompt", [8, 3])
def test_zeros_before_the_response_are_never_silent(tmp_path, rows_with_prompt):
    """Different prompt ids and no mask: dropped if nearly all rows begin with zeros, else kept and named."""
    rows = []
    for number in range(8):
        prompt = [0.0] * 3 * (number < rows_with_prompt)
        scores = [*prompt, -0.5, -0.6 - 0.1 * number]
        ids = [*range(number, number + len(prompt)), 20, 21 + number]
        rows.append({"logp_train": scores, "logp_infer": scores, "ids": ids})
    read = read_log(_write_lines(tmp_path / "a.jsonl", rows))
    assert len(read.problems) == 1
    is_dropped = rows_with_prompt == 8
    assert ("dropped" if is_dropped else "kept") in str(read.problems[0])
    assert read.log.mask.sum() == (16 if is_dropped else 25)


def test_directory_of_pickles_says_so(tmp_path):
    (tmp_path / "batch.pkl").write_bytes(b"x")
    with pytest.raises(FileNotFoundError, match=r"batch\.pkl: a pickle can run code"):
        read_log(tmp_path)


def test_one_advantage_per_sequence_is_broadcast(tmp_path):
    row = {"logp_train": [-1.0, -2.0], "logp_infer": [-1.0, -2.0], "advantages": 0.5}
    lines = read_log(_write_lines(tmp_path / "a.jsonl", [row, row])).log
    pq.write_table(pa.Table.from_pylist([row, row]), tmp_path / "a.parquet")
    for log in (lines, read_log(tmp_path / "a.parquet").log):
        assert log.advantages is not None
        assert_exact(log.advantages, np.full(4, 0.5, np.float32))


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_refused_file_lists_columns_once(tmp_path, suffix):
    row = {"my_train": [-1.0], "my_infer": [-1.5]}
    path = tmp_path / f"log.{suffix}"
    if suffix == "jsonl":
        _write_lines(path, [row] * 4)
    else:
        pq.write_table(pa.Table.from_pylist([row] * 4), path)
    with pytest.raises(ValueError, match="Columns found: my_train, my_infer") as caught:
        read_log(path)
    assert str(caught.value).count("my_train") == 1
    with pytest.raises(ValueError, match="--rename of mine: no such column") as caught:
        read_log(path, {"my_train": "logp_train", "mine": "logp_infer"})
    assert "Missing: logp_infer" in str(caught.value)
    renamed = read_log(path, {"my_train": "logp_train", "my_infer": "logp_infer"})
    assert renamed.log.num_sequences == 4
    options = ["--rename", "my_train=logp_train", "--rename", "my_infer=logp_infer"]
    assert CliRunner().invoke(app, ["diagnose", str(path), *options]).exit_code == 0
    wrong = CliRunner().invoke(app, ["diagnose", str(path), "--rename", "my_train"])
    assert wrong.exit_code == 2
    assert "FOUND=COLUMN" in wrong.output


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"input": "a", "output": "b", "gts": "c", "score": 1.0, "step": 1}, "calculate_log_probs=True"),
        ({"reward": 1.0, "head_version": 1, "tail_version": 2}, "AReaL"),
    ],
)
def test_text_dumps_name_the_missing_setting(tmp_path, row, reason):
    with pytest.raises(ValueError, match=reason):
        read_log(_write_lines(tmp_path / "1.jsonl", [row] * 3))


def test_pickle_is_refused(tmp_path):
    (tmp_path / "batch.pkl").write_bytes(b"cos\nsystem\n(X\x04\x00\x00\x00truetR.")
    with pytest.raises(ValueError, match="a pickle can run code"):
        read_log(tmp_path / "batch.pkl")


# Curves


def _write_csv(path, header, rows):
    path.write_text("\n".join(",".join(map(str, row)) for row in [header, *rows]) + "\n")
    return path


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("wandb.csv", ("Step", "my-run - rollout_corr/k3_kl")),
        ("trackio.csv", ("step", "train/gen_kl_error")),
        ("run-rollout_corr_k3_kl.csv", ("Wall time", "Step", "Value")),
    ],
)
def test_exported_curves_answer_by_size(tmp_path, name, header):
    rows = [(step, 2e-4 * 2**step)[: len(header)] for step in range(9)]
    if len(header) == 3:
        rows = [(0.0, *row) for row in rows]
    found = diagnose(_write_csv(tmp_path / name, header, rows))
    assert found.source.startswith("curve-level")
    assert (found.causes[0].cause, found.causes[0].probability) == ("unknown", 1.0)
    assert found.answers["weight_sync"].has_fault
    assert found.answers["weight_sync"].confidence <= 0.65
    np.testing.assert_allclose(found.steps[0]["mean_abs_log_rho"], 0.02)


def test_curves_without_mismatch_list_what_they_have(tmp_path):
    path = _write_csv(tmp_path / "a.csv", ("Step", "loss"), [(0, 1.0)])
    with pytest.raises(ValueError, match="Found: Step, loss"):
        diagnose(path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from([*NEMO, "trainer_logprobs", "inference_logprobs", "loss_mask", "step", "logp_train"])


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=8), min_size=1, max_size=4))
def test_json_reader_survives_any_row(rows):
    with tempfile.TemporaryDirectory() as folder:
        path = _write_lines(Path(folder) / "train_data_step1.jsonl", [NEMO, *rows])
        log = read_log(path).log
    assert log.num_sequences >= 1
    assert np.isfinite(log.logp_train).all()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.text(max_size=300), st.sampled_from(["a.csv", "trainer_state.json", "b.jsonl"]))
def test_curve_reader_survives_any_text(text, name):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        head = "Step,rollout_corr/k3_kl\n" if name.endswith("csv") else ""
        path.write_text(head + text, errors="replace")
        files = find_curves(path)
        if files:
            try:
                rows, _ = read_curves(files)
            except ValueError as error:
                assert str(error).isprintable()  # noqa: PT017 - either outcome is allowed
            else:
                assert np.isfinite([row["mean_abs_log_rho"] for row in rows]).all()


# Two logs


def test_comparison_names_what_changed(tmp_path):
    faultless = generate_log("no_fault", 0, 0, noise=0.05)
    paths = [write_log(log, tmp_path / f"{n}.parquet") for n, log in enumerate((faultless, faultless))]
    cold = replace(faultless, logp_infer=np.minimum(faultless.logp_infer / 0.5, 0))
    paths.append(write_log(cold, tmp_path / "2.parquet"))

    def compared(first, second):
        done = CliRunner().invoke(app, ["diagnose", str(first), str(second), "--json"])
        assert done.exit_code == 0, done.output
        return {row["quantity"]: row for row in json.loads(done.stdout)}

    same, other = compared(*paths[:2]), compared(paths[0], paths[2])
    assert {row["changed"] for row in same.values()} == {"no"}
    assert same["rms_log_rho"]["difference"] == 0
    assert other["rms_log_rho"]["changed"] == "yes"
    assert other["rms_log_rho"]["ci_low"] > 0
    assert other["mean_logp_train"]["changed"] == "no"
