"""`simlab diagnose`: inputs without information are one error or a warning before the report."""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from simlab.cli import app
from simlab.diagnosis import diagnose


def _diagnose(*arguments):
    done = CliRunner().invoke(app, ["diagnose", *map(str, arguments)])
    return done, " ".join(done.output.split())


def _write_columns(path, train, infer, **columns):
    rows = [{"logp_train": train, "logp_infer": infer} | columns] * 8
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("train", "infer", "mask", "message"),
    [
        (
            [-1.0],
            [-np.inf],
            [1],
            r"logp_infer must be the log-probs of .* tokens, got -inf .* all 8",
        ),
        ([-np.inf], [-1.0], [1], r"logp_train must be the log-probs of the sampled tokens, got -inf"),
        ([-1.0], [-1.1], [0], r"must have tokens that are trained on, got 8, all of them masked or padding"),
    ],
)
def test_log_without_information_is_one_error(tmp_path, train, infer, mask, message):
    path = _write_columns(tmp_path / "log.jsonl", train, infer, mask=mask)
    for arguments in ([path], [path, path]):
        done, text = _diagnose(*arguments)
        assert done.exit_code == 2
        assert re.search(message, text)


@pytest.mark.parametrize(
    ("infer", "message"),
    [
        ([-1.0, -2.0], "equal bit for bit at all 16 tokens\\. .*bypass_mode=True"),
        ([-1.1, -np.inf], "logp_infer is -inf or at most -100 nats at 50% of the tokens"),
        ([-1.1, -2.0], None),
    ],
)
def test_warning_comes_before_the_diagnosis(tmp_path, infer, message):
    path = _write_columns(tmp_path / "log.jsonl", [-1.0, -2.0], infer)
    done, text = _diagnose(path, "--out", tmp_path / "out")
    assert done.exit_code == 0, text
    assert (tmp_path / "out" / "warnings.parquet").is_file() == (message is not None)
    assert text.startswith("warning: ") == (message is not None)
    assert message is None or re.search(message, text)
    assert len(json.loads(_diagnose(path, "--json")[0].stdout)["warnings"]) == (message is not None)


def test_report_counts_one_in_the_singular(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"logp_train": [-1.0], "logp_infer": [-1.1]}')
    _, text = _diagnose(tmp_path / "log.jsonl")
    assert text.startswith("1 sequence, 1 token ")
    assert "1 token; at least 200 are needed" in text


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_renamed_column_that_no_row_has_is_an_error(tmp_path, suffix):
    path = tmp_path / f"log.{suffix}"
    rows = [{"logp_train": [-1.0], "logp_infer": [-1.1], "mine": [-1.0]}]
    if suffix == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in [{"logp_train": [-1.0]}, *rows]))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    assert _diagnose(path, "--rename", "mine=logp")[0].exit_code == 0
    for arguments in ([path], [path, path]):
        done, text = _diagnose(*arguments, "--rename", "nothere=logp")
        assert done.exit_code == 2
        assert "--rename must name columns of the files, got nothere. Columns of log." in text


def test_rename_of_curves_is_an_error(tmp_path):
    (tmp_path / "trainer_state.json").write_text('{"log_history": [{"step": 1, "loss": 0.1}]}')
    done, text = _diagnose(tmp_path, "--rename", "a=logp")
    assert done.exit_code == 2
    assert "--rename takes token-level logs, got the curves of trainer_state.json" in text


@pytest.mark.parametrize("name", ["log.jsonl", "log.csv", "log.parquet"])
def test_empty_file_is_called_empty(tmp_path, name):
    (tmp_path / name).touch()
    done, text = _diagnose(tmp_path / name)
    assert done.exit_code == 2
    assert f"{name} is empty" in text


def test_blank_lines_are_no_rows(tmp_path):
    (tmp_path / "log.jsonl").write_text("\n\n")
    assert "the file has no rows" in _diagnose(tmp_path)[1]


def test_directory_skips_an_empty_trainer_state(tmp_path):
    (tmp_path / "trainer_state.json").touch()
    _write_columns(tmp_path / "1.jsonl", [-1.0], [-1.1])
    assert diagnose(tmp_path).files == ["1.jsonl"]
