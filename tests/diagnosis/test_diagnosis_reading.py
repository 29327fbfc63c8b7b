"""Reading and writing logs: broken rows are reported and skipped, hostile files give one error."""

import json
import os
import re
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from simlab.cli import app
from simlab.diagnosis import diagnose, diagnose_log, read_log
from simlab.diagnosis.injected_faults import generate_log
from simlab.diagnosis.log_metrics import measure
from simlab.diagnosis.log_writer import write_log
from simlab.diagnosis.schema import COLUMNS
from simlab.diagnosis.torch_file import load
from tests.diagnosis.torch_files import Raw, Tensor, torch_save
from tests.tolerances import assert_exact


def _rows(count=4, length=3):
    return [
        {
            "logp_train": [-0.5 - 0.1 * row] * (length + row),
            "logp_infer": [-0.6] * (length + row),
            "ids": list(range(length + row)),
            "step": row // 2,
            "reward": 1.0,
        }
        for row in range(count)
    ]


def _read_json_lines(path, rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_parquet_log_round_trips(tmp_path):
    log = generate_log("stale", 0.1, 0, sequences=8, length=6, steps=1)
    back = read_log(write_log(log, tmp_path / "a.parquet"))
    assert not back.problems
    for name, value in vars(log).items():
        if isinstance(value, np.ndarray):
            assert_exact(np.asarray(getattr(back.log, name), value.dtype), value)
    assert back.log.top_k == log.top_k


def test_reader_accepts_framework_column_names(tmp_path):
    row = {
        "old_log_probs": [-1.0],
        "rollout_log_probs": [-1.5],
        "responses": [7],
        "uid": "a",
        "global_step": 3,
    }
    log = read_log(_read_json_lines(tmp_path / "verl.jsonl", [row])).log
    assert (log.logp_train[0], log.logp_infer[0], log.step[0]) == (-1.0, -1.5, 3)
    assert log.ids is not None
    assert log.ids[0] == 7


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("{not json", "not JSON"),
        ({"logp_infer": [-0.6] * 4}, "must have 5 entries, got 4"),
        ({"logp_train": [-0.5, float("nan"), -0.5, -0.5, -0.5]}, "logp_train is nan at token 2"),
        ({"logp_infer": [-0.6, -0.6, 0.7, -0.6, -0.6]}, "logp_infer is 0.7 at token 3"),
        ({"logp_train": "five"}, "is not numeric"),
        ({"logp_train": [[-0.5]]}, "not a list of numbers"),
        ({"logp_train": []}, "empty"),
        ({"reward": float("inf")}, "reward is inf"),
        ("[1, 2]", "not a JSON object"),
    ],
)
def test_reader_reports_and_skips_broken_line(tmp_path, broken, reason):
    rows = _rows()
    rows[2] = broken if isinstance(broken, str) else rows[2] | broken
    read = read_log(_read_json_lines(tmp_path / "log.jsonl", rows))
    assert read.log.num_sequences == 3
    (problem,) = read.problems
    assert problem.row == 3
    assert reason in str(problem)


def test_reader_takes_columns_of_most_lines(tmp_path):
    rows = _rows()
    rows[0] = {"prompt": "hello"}
    read = read_log(_read_json_lines(tmp_path / "log.jsonl", rows))
    assert read.log.num_sequences == 3
    assert [str(problem) for problem in read.problems] == ["log.jsonl, row 1: no logp_train"]
    assert read.log.ids is not None


def test_reader_counts_broken_lines_beyond_limit(tmp_path):
    read = read_log(_read_json_lines(tmp_path / "log.jsonl", [*_rows(3), *["{"] * 57]))
    assert len(read.problems) == 21
    assert "37 more rows are unusable" in str(read.problems[-1])


def test_reader_counts_broken_rows_of_a_row_group_beyond_limit(tmp_path):
    broken = {"logp_train": [-1.0], "logp_infer": [-1.0, -2.0]}
    good = [{"logp_train": row["logp_train"], "logp_infer": row["logp_infer"]} for row in _rows(3)]
    pq.write_table(pa.Table.from_pylist([*good, *[broken] * 57]), tmp_path / "log.parquet")
    read = read_log(tmp_path / "log.parquet")
    assert len(read.problems) == 21
    assert "37 more rows are unusable" in str(read.problems[-1])


def test_reader_skips_file_that_lacks_column(tmp_path):
    for name in range(12):
        _read_json_lines(tmp_path / f"{name:02}.jsonl", _rows(2))
    _read_json_lines(tmp_path / "12.jsonl", [{"logp_train": [-1.0], "logp_infer": [-1.0]}])
    read = read_log(tmp_path)
    assert read.log.num_sequences == 24
    assert read.log.ids is not None
    assert "12.jsonl: ids is missing" in str(read.problems[0])


def test_reader_rejects_fractional_ids(tmp_path):
    rows = _rows(2)
    rows[1]["ids"][0] = 0.5
    read = read_log(_read_json_lines(tmp_path / "log.jsonl", rows))
    assert "row 2: ids has values that are not integers" in str(read.problems[0])
    table = pa.table({"logp_train": [[-1.0]], "logp_infer": [[-1.0]], "ids": [[0.5]]})
    pq.write_table(table, tmp_path / "log.parquet")
    assert "column ids ignored" in str(read_log(tmp_path / "log.parquet").problems[0])


def test_error_has_no_control_characters(tmp_path):
    path = tmp_path / "a\x1b[2J.jsonl"
    path.write_text("{")
    with pytest.raises(ValueError, match="must have a usable log") as caught:
        read_log(path)
    assert str(caught.value).isprintable()


def test_reader_reports_truncated_line(tmp_path):
    path = _read_json_lines(tmp_path / "log.jsonl", _rows())
    path.write_bytes(path.read_bytes()[:-20])
    read = read_log(path)
    assert read.log.num_sequences == 3
    assert "row 4" in str(read.problems[0])


def test_reader_reports_broken_parquet_rows(tmp_path):
    rows = _rows(6)
    rows[1]["logp_infer"] = rows[1]["logp_infer"][:-1]
    rows[4]["logp_train"][0] = float("nan")
    rows[5]["logp_train"] = None
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "log.parquet", row_group_size=2)
    read = read_log(tmp_path / "log.parquet")
    assert read.log.num_sequences == 3
    assert [problem.row for problem in read.problems] == [2, 5, 6]


def test_reader_skips_truncated_file(tmp_path):
    write_log(generate_log("no_fault", 0, 0, sequences=8), tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "b.parquet").write_bytes(content[: len(content) // 2])
    read = read_log(tmp_path)
    assert read.log.num_sequences == 8
    assert [problem.file for problem in read.problems] == ["b.parquet"]
    with pytest.raises(ValueError, match=r"must have a usable log.* .*b\.parquet"):
        read_log(tmp_path / "b.parquet")


def test_reader_skips_damaged_row_group(tmp_path):
    log = generate_log("no_fault", 0, 0, sequences=16)
    table = pq.read_table(write_log(log, tmp_path / "a.parquet"))
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=8, compression="zstd")
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    start = pq.read_metadata(tmp_path / "a.parquet").row_group(1).column(0).data_page_offset
    data[start : start + 200] = bytes(200)
    (tmp_path / "a.parquet").write_bytes(data)
    read = read_log(tmp_path / "a.parquet")
    assert read.log.num_sequences == 8
    assert any(problem.row == 9 for problem in read.problems)


def test_reader_ignores_column_of_wrong_type(tmp_path):
    table = pa.table({"logp_train": [[-1.0]], "logp_infer": [[-1.0]], "advantages": ["a lot"]})
    pq.write_table(table, tmp_path / "log.parquet")
    read = read_log(tmp_path / "log.parquet")
    assert read.log.advantages is None
    assert "column advantages ignored" in str(read.problems[0])


def test_reader_rejects_what_is_not_a_log(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_log(tmp_path / "none.parquet")
    with pytest.raises(FileNotFoundError, match="must have a log"):
        read_log(tmp_path)
    (tmp_path / "log.csv").write_text("a,b")
    with pytest.raises(ValueError, match=r"Log file must end in \.parquet"):
        read_log(tmp_path / "log.csv")
    pq.write_table(pa.table({"text": ["hello"]}), tmp_path / "text.parquet")
    with pytest.raises(ValueError, match=r"Missing: logp_train \(or old_log_probs"):
        read_log(tmp_path / "text.parquet")
    pq.write_table(pa.table({"completion": ["a"], "advantage": [0.5]}), tmp_path / "completions_1.parquet")
    with pytest.raises(ValueError, match="TRL's completions have no log-probs"):
        read_log(tmp_path / "completions_1.parquet")
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(FileNotFoundError, match="is not a regular file"):
        read_log(tmp_path / "pipe.jsonl")


def test_reader_rejects_duplicate_column(tmp_path):
    column = pa.array([[-1.0]])
    table = pa.table([column, column, column], names=["logp_train", "logp_infer", "logp_train"])
    pq.write_table(table, tmp_path / "log.parquet")
    with pytest.raises(ValueError, match=r"log\.parquet: column logp_train occurs twice"):
        read_log(tmp_path / "log.parquet")


def test_reader_does_not_follow_links(tmp_path):
    secret = write_log(generate_log("no_fault", 0, 0, sequences=4), tmp_path / "secret.parquet")
    inside = tmp_path / "logs"
    inside.mkdir()
    (inside / "link.parquet").symlink_to(secret)
    with pytest.raises(FileNotFoundError, match="must have a log"):
        read_log(inside)


def test_reader_rejects_oversized_column_unread(tmp_path, monkeypatch):
    """Write a few thousand bytes that unpack to 10^6 equal numbers."""
    monkeypatch.setattr("simlab.diagnosis.log_reader.MAX_TOKENS", 10**6)
    column = pa.RunEndEncodedArray.from_arrays(pa.array([10**5], pa.int32()), pa.array([-1.0], pa.float32()))
    flat = pc.run_end_decode(column)
    row = pa.ListArray.from_arrays([0, 10**5], flat)
    table = pa.table({"logp_train": row, "logp_infer": row})
    path = tmp_path / "bomb.parquet"
    with pq.ParquetWriter(path, table.schema, compression="zstd") as file:
        for _ in range(11):
            file.write_table(table)
    assert path.stat().st_size < 2 * 10**4
    with pytest.raises(
        ValueError, match=r"bomb\.parquet: column logp_train must have at most 1,000,000 values"
    ):
        read_log(path)


def test_reader_rejects_oversized_log(tmp_path, monkeypatch):
    monkeypatch.setattr("simlab.diagnosis.log_reader.MAX_TOKENS", 10)
    with pytest.raises(ValueError, match="at most 10 tokens: pass fewer files"):
        read_log(_read_json_lines(tmp_path / "log.jsonl", _rows()))


def test_long_text_is_stored_once(tmp_path):
    rows = [row | {"group": "x" * 10**6 * (number == 0)} for number, row in enumerate(_rows(400))]
    log = read_log(_read_json_lines(tmp_path / "log.jsonl", rows)).log
    assert log.group is not None
    # Two names of step 0, then one of each step.
    assert len(np.unique(log.group)) == 201


# slime, and files of torch.save


# Nested lists that repeat the same ten lists: 10^12 numbers in 200 bytes.
NESTED = (
    b"]("
    + b"K\x01" * 10
    + b"e"
    + b"".join(b"q" + bytes([n]) + b"0](" + (b"h" + bytes([n])) * 10 + b"e" for n in range(12))
)


def _slime(**changes):
    def tensors(rows):
        return [Tensor(np.asarray(row, np.float32)) for row in rows]

    data = {
        "tokens": [Tensor(np.arange(5, 9), storage="LongStorage"), [5, 6, 7, 8, 9]],
        "response_lengths": [2, 3],
        "log_probs": tensors([[-1.0, -0.5], [-0.1, -0.2, -0.3]]),
        "rollout_log_probs": tensors([[-1.1, -0.5], [-0.1, -0.2, -0.4]]),
        "loss_masks": [[1, 1], [1, 0, 1]],
        "raw_reward": [1.0, 0.0],
    }
    return {"rollout_id": 4, "rank": 0, "rollout_data": data | changes}


def test_slime_dump_is_read_without_torch(tmp_path):
    log = read_log(torch_save(tmp_path / "4_0.pt", _slime())).log
    assert_exact(log.lengths, np.array([2, 3]))
    assert_exact(log.ids, np.array([7, 8, 7, 8, 9]))
    assert_exact(log.logp_infer, np.float32([-1.1, -0.5, -0.1, -0.2, -0.4]))
    assert_exact(log.mask, np.array([True, True, True, False, True]))
    assert (log.step == 4).all()


def test_torch_file_reads_views_and_bfloat16(tmp_path):
    values = np.arange(12, dtype=np.float32)
    halves = (values.view(np.uint32) >> 16).astype(np.uint16)
    content = [Tensor(values, (2, 3), (1, 4), 1), Tensor(halves, storage="BFloat16Storage")]
    view, widened = load(torch_save(tmp_path / "a.pt", content))
    assert_exact(view, np.float32([[1, 5, 9], [2, 6, 10]]))
    assert_exact(widened, values)


def test_slime_reports_sample_of_wrong_length(tmp_path):
    short = [Tensor(np.float32([-1.0])), Tensor(np.float32([-0.1, -0.2, -0.4]))]
    read = read_log(torch_save(tmp_path / "4_0.pt", _slime(rollout_log_probs=short)))
    assert read.log.num_sequences == 1
    assert "row 1: logp_infer must have 2 entries, got 1" in str(read.problems[0])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (Raw(b"cos\nsystem\n(X\x04\x00\x00\x00truetR"), "os.system"),
        (Raw(b"cbuiltins\neval\n(X\x01\x00\x00\x001tR"), "builtins.eval"),
        (Raw(b"csimlab.diagnosis.torch_file\nload\n(X\x01\x00\x00\x001tR"), "torch_file.load"),
        (Raw(b"ctorch\nload\n(X\x01\x00\x00\x001tR"), "torch.load"),
        (Tensor(np.float32([1]), (10**12,), (1,)), "a tensor of shape"),
        (Tensor(np.float32([1]), (10**6, 10**6), (0, 0)), "a tensor of shape"),
        (Tensor(np.float32([1]), (-1,), (1,)), "a tensor of shape"),
        (Tensor(np.float32([1]), (1,), (1,), 7), "a tensor of shape"),
        (Tensor(np.float32([1]), key="../../secret"), "names a record"),
        (Tensor(np.float32([1]), key="77"), "is missing"),
        (Raw(b"garbage"), "corrupt"),
        # A memo of 2^32 entries, and a million numbers over and over.
        (Raw(b"]r\xff\xff\xff\xff"), "no rollout_data"),
        (_slime(log_probs=[Tensor(np.float32([-1]), (10**8,), (0,))] * 9), "numbers in its tensors"),
        (_slime(log_probs=[Raw(NESTED)]), "must be numbers"),
        ({"something": 1}, "no rollout_data"),
        ({"rollout_data": {"log_probs": "text"}}, "must be a list"),
        ({"rollout_data": {}}, "Missing: logp_train"),
    ],
)
def test_torch_file_rejects_hostile_content(tmp_path, content, reason):
    path = torch_save(tmp_path / "x.pt", content)
    with pytest.raises(ValueError, match=f"must have a usable log.* .*{re.escape(reason)}"):
        read_log(path)


def test_torch_file_rejects_compression(tmp_path):
    bomb = torch_save(tmp_path / "x.pt", _slime(), zipfile.ZIP_DEFLATED, **{"9": bytes(10**7)})
    with pytest.raises(ValueError, match="compressed"):
        read_log(bomb)


def test_pickle_cannot_modify_loader(tmp_path):
    """The opcode BUILD sets attributes of an allowed name; the next file must not see them."""
    change = b"ctorch._utils\n_rebuild_tensor_v2\n(N}(X\x0c\x00\x00\x00__defaults__(K\x01tut\x86b."
    torch_save(tmp_path / "x.pt", Raw(change))
    with pytest.raises(ValueError, match="must have a usable log"):
        read_log(tmp_path / "x.pt")
    assert read_log(torch_save(tmp_path / "y.pt", _slime())).log.num_sequences == 2


# TRL, and the command


def _trl_state(path, levels):
    history = [
        {"step": step, "sampling/sampling_logp_difference/mean": level, "reward": 0.5, "loss": 0.1}
        for step, level in enumerate(levels)
    ]
    path.write_text(json.dumps({"log_history": [*history, {"step": 99, "train_loss": 0.0}]}))


@pytest.mark.parametrize(
    ("levels", "found"), [([0.02] * 9, False), ([0.02 * 1.5**n for n in range(9)], True)]
)
def test_trl_averages_answer_by_size(tmp_path, levels, found):
    _trl_state(tmp_path / "trainer_state.json", levels)
    answers = diagnose(tmp_path).answers
    assert answers["weight_sync"].has_fault is found
    assert answers["weight_sync"].confidence <= 0.65
    assert {answer.verdict for name, answer in answers.items() if name != "weight_sync"} == {"cannot tell"}


def test_trl_reports_and_skips_broken_entries(tmp_path):
    path = tmp_path / "trainer_state.json"
    _trl_state(path, [0.02, float("nan"), 0.02])
    found = diagnose(tmp_path)
    assert [row["step"] for row in found.steps] == [0, 2]
    assert [problem.row for problem in found.problems] == [2]
    content = path.read_text()
    path.write_text(content[: content.index('"step": 2') + 12])
    found = diagnose(tmp_path)
    assert [row["step"] for row in found.steps] == [0]
    assert [problem.row for problem in found.problems] == [3, 2]
    path.write_text("nothing")
    with pytest.raises(ValueError, match=r"trainer_state\.json: the file is truncated"):
        diagnose(tmp_path)


def test_diagnose_writes_json_tables_and_figure(tmp_path, monkeypatch):
    path = write_log(generate_log("partial", 0.8, 0), tmp_path / "log.parquet")
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "runs" / "diagnosis"
    done = CliRunner().invoke(app, ["diagnose", str(path), "--figure", "--json"])
    assert done.exit_code == 0, done.output
    content = json.loads(done.stdout)
    assert content["causes"][0]["cause"] == "weight_sync"
    assert content["causes"][0].keys() == {"cause", "probability", "evidence", "check", "fix"}
    assert content["answers"][0]["verdict"].startswith("broken weight sync")
    tables = {file.stem for file in out.glob("*.parquet")}
    assert tables >= {"causes", "answers", "signatures", "steps", "panels"}
    assert (out / "diagnosis.png").stat().st_size > 1000
    shown = CliRunner().invoke(app, ["diagnose", str(path)])
    assert "rollout_corr/kl" in shown.stdout
    missing = CliRunner().invoke(app, ["diagnose", str(tmp_path / "none.parquet")])
    assert missing.exit_code == 2
    assert "does not exist" in missing.output


def test_steps_are_measured_separately():
    log = generate_log("stale", 0.1, 0, sequences=12, length=8, steps=3)
    mixed = replace(log, step=np.tile(np.arange(3), 4))
    for row in diagnose_log(mixed).steps:
        alone = measure(mixed.select_sequences(mixed.step == row["step"]))
        assert row["std_rho"] == alone["std_rho"]
        assert row["abs_seq_log_ratio"] == alone["abs_seq_log_ratio"]


def test_every_column_is_documented():
    text = (Path(__file__).resolve().parents[2] / "docs" / "diagnosis.md").read_text()
    for name, column in COLUMNS.items():
        assert f"`{name}`" in text
        assert all(alias in text for alias in column.aliases)
