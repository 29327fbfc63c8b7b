"""Logs in and out: what is broken is named and left out, what is hostile gives one clear error."""

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
from simlab.diagnosis import diagnose, diagnosis_of, read_log
from simlab.diagnosis.injected_faults import planted
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


def _json_lines(path, rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_parquet_round_trip(tmp_path):
    log = planted("stale", 0.1, 0, sequences=8, length=6, steps=1)
    back = read_log(write_log(log, tmp_path / "a.parquet"))
    assert not back.problems
    for name, value in vars(log).items():
        if isinstance(value, np.ndarray):
            assert_exact(np.asarray(getattr(back.log, name), value.dtype), value)
    assert back.log.top_k == log.top_k


def test_names_of_the_frameworks_are_understood(tmp_path):
    row = {
        "old_log_probs": [-1.0],
        "rollout_log_probs": [-1.5],
        "responses": [7],
        "uid": "a",
        "global_step": 3,
    }
    log = read_log(_json_lines(tmp_path / "verl.jsonl", [row])).log
    assert (log.logp_train[0], log.logp_infer[0], log.step[0]) == (-1.0, -1.5, 3)
    assert log.ids is not None
    assert log.ids[0] == 7


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("{not json", "no JSON"),
        ({"logp_infer": [-0.6] * 4}, "4 entries, logp_train 5"),
        ({"logp_train": [-0.5, float("nan"), -0.5, -0.5, -0.5]}, "logp_train is nan at token 2"),
        ({"logp_infer": [-0.6, -0.6, 0.7, -0.6, -0.6]}, "logp_infer is 0.7 at token 3"),
        ({"logp_train": "five"}, "does not hold numbers"),
        ({"logp_train": [[-0.5]]}, "not a list of numbers"),
        ({"logp_train": []}, "empty"),
        ({"reward": float("inf")}, "reward is inf"),
        ("[1, 2]", "no JSON object"),
    ],
)
def test_a_broken_line_is_named_and_the_rest_kept(tmp_path, broken, reason):
    rows = _rows()
    rows[2] = broken if isinstance(broken, str) else rows[2] | broken
    read = read_log(_json_lines(tmp_path / "log.jsonl", rows))
    assert read.log.sequences == 3
    (problem,) = read.problems
    assert problem.row == 3
    assert reason in str(problem)


def test_a_first_line_of_another_kind_does_not_decide_the_columns(tmp_path):
    rows = _rows()
    rows[0] = {"prompt": "hello"}
    read = read_log(_json_lines(tmp_path / "log.jsonl", rows))
    assert read.log.sequences == 3
    assert [str(problem) for problem in read.problems] == ["log.jsonl, row 1: no logp_train"]
    assert read.log.ids is not None


def test_many_broken_lines_are_counted_not_listed(tmp_path):
    read = read_log(_json_lines(tmp_path / "log.jsonl", [*_rows(3), *["{"] * 57]))
    assert len(read.problems) == 21
    assert "37 more rows are unusable" in str(read.problems[-1])


def test_a_file_of_another_kind_does_not_take_a_column_from_the_rest(tmp_path):
    for name in range(12):
        _json_lines(tmp_path / f"{name:02}.jsonl", _rows(2))
    _json_lines(tmp_path / "12.jsonl", [{"logp_train": [-1.0], "logp_infer": [-1.0]}])
    read = read_log(tmp_path)
    assert read.log.sequences == 24
    assert read.log.ids is not None
    assert "12.jsonl: no ids" in str(read.problems[0])


def test_numbers_that_are_not_whole_are_no_ids(tmp_path):
    rows = _rows(2)
    rows[1]["ids"][0] = 0.5
    read = read_log(_json_lines(tmp_path / "log.jsonl", rows))
    assert "row 2: ids does not hold whole numbers" in str(read.problems[0])
    table = pa.table({"logp_train": [[-1.0]], "logp_infer": [[-1.0]], "ids": [[0.5]]})
    pq.write_table(table, tmp_path / "log.parquet")
    assert "column ids is not used" in str(read_log(tmp_path / "log.parquet").problems[0])


def test_what_a_file_says_cannot_move_the_cursor(tmp_path):
    path = tmp_path / "a\x1b[2J.jsonl"
    path.write_text("{")
    with pytest.raises(ValueError, match="nothing usable") as caught:
        read_log(path)
    assert str(caught.value).isprintable()


def test_a_truncated_last_line_is_named(tmp_path):
    path = _json_lines(tmp_path / "log.jsonl", _rows())
    path.write_bytes(path.read_bytes()[:-20])
    read = read_log(path)
    assert read.log.sequences == 3
    assert "row 4" in str(read.problems[0])


def test_broken_rows_of_parquet_are_named(tmp_path):
    rows = _rows(6)
    rows[1]["logp_infer"] = rows[1]["logp_infer"][:-1]
    rows[4]["logp_train"][0] = float("nan")
    rows[5]["logp_train"] = None
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "log.parquet", row_group_size=2)
    read = read_log(tmp_path / "log.parquet")
    assert read.log.sequences == 3
    assert [problem.row for problem in read.problems] == [2, 5, 6]


def test_a_truncated_file_is_named_and_its_neighbours_kept(tmp_path):
    write_log(planted("honest", 0, 0, sequences=8), tmp_path / "a.parquet")
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "b.parquet").write_bytes(whole[: len(whole) // 2])
    read = read_log(tmp_path)
    assert read.log.sequences == 8
    assert [problem.file for problem in read.problems] == ["b.parquet"]
    with pytest.raises(ValueError, match=r"nothing usable in .*b\.parquet"):
        read_log(tmp_path / "b.parquet")


def test_a_damaged_row_group_does_not_take_the_others(tmp_path):
    log = planted("honest", 0, 0, sequences=16)
    table = pq.read_table(write_log(log, tmp_path / "a.parquet"))
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=8, compression="zstd")
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    start = pq.read_metadata(tmp_path / "a.parquet").row_group(1).column(0).data_page_offset
    data[start : start + 200] = bytes(200)
    (tmp_path / "a.parquet").write_bytes(data)
    read = read_log(tmp_path / "a.parquet")
    assert read.log.sequences == 8
    assert any(problem.row == 9 for problem in read.problems)


def test_a_column_of_the_wrong_kind_is_not_used(tmp_path):
    table = pa.table({"logp_train": [[-1.0]], "logp_infer": [[-1.0]], "advantages": ["a lot"]})
    pq.write_table(table, tmp_path / "log.parquet")
    read = read_log(tmp_path / "log.parquet")
    assert read.log.advantages is None
    assert "column advantages is not used" in str(read.problems[0])


def test_what_is_no_log_gets_one_clear_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file"):
        read_log(tmp_path / "none.parquet")
    with pytest.raises(FileNotFoundError, match="no log in"):
        read_log(tmp_path)
    (tmp_path / "log.csv").write_text("a,b")
    with pytest.raises(ValueError, match=r"unknown kind of log; known are \.parquet"):
        read_log(tmp_path / "log.csv")
    pq.write_table(pa.table({"text": ["hello"]}), tmp_path / "text.parquet")
    with pytest.raises(ValueError, match="no column logp_train or old_log_probs"):
        read_log(tmp_path / "text.parquet")
    pq.write_table(pa.table({"completion": ["a"], "advantage": [0.5]}), tmp_path / "completions_1.parquet")
    with pytest.raises(ValueError, match="TRL's completions hold no log-probs"):
        read_log(tmp_path / "completions_1.parquet")
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(FileNotFoundError, match="no regular file"):
        read_log(tmp_path / "pipe.jsonl")


def test_a_column_that_is_there_twice_gets_one_clear_error(tmp_path):
    column = pa.array([[-1.0]])
    table = pa.table([column, column, column], names=["logp_train", "logp_infer", "logp_train"])
    pq.write_table(table, tmp_path / "log.parquet")
    with pytest.raises(ValueError, match=r"log\.parquet: it has logp_train twice"):
        read_log(tmp_path / "log.parquet")


def test_links_out_of_a_folder_are_not_followed(tmp_path):
    secret = write_log(planted("honest", 0, 0, sequences=4), tmp_path / "secret.parquet")
    inside = tmp_path / "logs"
    inside.mkdir()
    (inside / "link.parquet").symlink_to(secret)
    with pytest.raises(FileNotFoundError, match="no log in"):
        read_log(inside)


def test_a_column_that_claims_too_much_is_refused_unread(tmp_path, monkeypatch):
    """A few thousand bytes that unpack to 10^6 equal numbers."""
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
    with pytest.raises(ValueError, match=r"bomb\.parquet: a column claims 1,100,000 values"):
        read_log(path)


def test_a_log_that_does_not_fit_ends_in_one_error(tmp_path, monkeypatch):
    monkeypatch.setattr("simlab.diagnosis.log_reader.MAX_TOKENS", 10)
    with pytest.raises(ValueError, match="at most 10: name fewer files"):
        read_log(_json_lines(tmp_path / "log.jsonl", _rows()))


def test_a_text_of_any_length_costs_its_length(tmp_path):
    rows = [row | {"group": "x" * 10**6 * (number == 0)} for number, row in enumerate(_rows(400))]
    log = read_log(_json_lines(tmp_path / "log.jsonl", rows)).log
    assert log.group is not None
    # Two names of step 0, then one of each step.
    assert len(np.unique(log.group)) == 201


# slime, and files of torch.save


# Ten lists in a list, in each of which the same ten are, and so on: 10^12 numbers in 200 bytes.
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


def test_slime_is_read_without_torch(tmp_path):
    log = read_log(torch_save(tmp_path / "4_0.pt", _slime())).log
    assert_exact(log.lengths, np.array([2, 3]))
    assert_exact(log.ids, np.array([7, 8, 7, 8, 9]))
    assert_exact(log.logp_infer, np.float32([-1.1, -0.5, -0.1, -0.2, -0.4]))
    assert_exact(log.mask, np.array([True, True, True, False, True]))
    assert (log.step == 4).all()


def test_views_and_bfloat16_of_a_torch_file(tmp_path):
    values = np.arange(12, dtype=np.float32)
    halves = (values.view(np.uint32) >> 16).astype(np.uint16)
    content = [Tensor(values, (2, 3), (1, 4), 1), Tensor(halves, storage="BFloat16Storage")]
    view, widened = load(torch_save(tmp_path / "a.pt", content))
    assert_exact(view, np.float32([[1, 5, 9], [2, 6, 10]]))
    assert_exact(widened, values)


def test_a_sample_of_slime_that_does_not_fit_is_named(tmp_path):
    short = [Tensor(np.float32([-1.0])), Tensor(np.float32([-0.1, -0.2, -0.4]))]
    read = read_log(torch_save(tmp_path / "4_0.pt", _slime(rollout_log_probs=short)))
    assert read.log.sequences == 1
    assert "row 1: logp_infer has 1 entries, logp_train 2" in str(read.problems[0])


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
        (_slime(log_probs=[Raw(NESTED)]), "not numbers"),
        ({"something": 1}, "no rollout_data"),
        ({"rollout_data": {"log_probs": "text"}}, "no list"),
        ({"rollout_data": {}}, "no column"),
    ],
)
def test_a_hostile_torch_file_gets_one_clear_error(tmp_path, content, reason):
    path = torch_save(tmp_path / "x.pt", content)
    with pytest.raises(ValueError, match=f"nothing usable in .*{re.escape(reason)}"):
        read_log(path)


def test_a_compressed_torch_file_is_refused(tmp_path):
    bomb = torch_save(tmp_path / "x.pt", _slime(), zipfile.ZIP_DEFLATED, **{"9": bytes(10**7)})
    with pytest.raises(ValueError, match="compressed"):
        read_log(bomb)


def test_a_pickle_cannot_change_the_loader(tmp_path):
    """BUILD on an allowed name sets attributes; the next file must not see them."""
    change = b"ctorch._utils\n_rebuild_tensor_v2\n(N}(X\x0c\x00\x00\x00__defaults__(K\x01tut\x86b."
    torch_save(tmp_path / "x.pt", Raw(change))
    with pytest.raises(ValueError, match="nothing usable"):
        read_log(tmp_path / "x.pt")
    assert read_log(torch_save(tmp_path / "y.pt", _slime())).log.sequences == 2


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
def test_averages_of_trl_answer_by_size_alone(tmp_path, levels, found):
    _trl_state(tmp_path / "trainer_state.json", levels)
    answers = diagnose(tmp_path).answers
    assert answers["weight_sync"].found is found
    assert answers["weight_sync"].sure <= 0.65
    assert {answer.verdict for name, answer in answers.items() if name != "weight_sync"} == {"cannot tell"}


def test_broken_entries_of_a_trl_state_are_named_and_the_rest_kept(tmp_path):
    path = tmp_path / "trainer_state.json"
    _trl_state(path, [0.02, float("nan"), 0.02])
    found = diagnose(tmp_path)
    assert [row["step"] for row in found.steps] == [0, 2]
    assert [problem.row for problem in found.problems] == [2]
    whole = path.read_text()
    path.write_text(whole[: whole.index('"step": 2') + 12])
    found = diagnose(tmp_path)
    assert [row["step"] for row in found.steps] == [0]
    assert [problem.row for problem in found.problems] == [3, 2]
    path.write_text("nothing")
    with pytest.raises(ValueError, match=r"trainer_state\.json: the file breaks off"):
        diagnose(tmp_path)


def test_the_command_prints_json_and_writes_tables_and_a_figure(tmp_path):
    path = write_log(planted("partial", 0.8, 0), tmp_path / "log.parquet")
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["diagnose", str(path), "--out", str(out), "--figure", "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["answers"][0]["verdict"].startswith("broken weight sync")
    assert {file.name for file in out.glob("*.parquet")} >= {"answers.parquet", "steps.parquet"}
    assert (out / "diagnosis.png").stat().st_size > 1000
    shown = CliRunner().invoke(app, ["diagnose", str(path)])
    assert "rollout_corr/kl" in shown.stdout
    missing = CliRunner().invoke(app, ["diagnose", str(tmp_path / "none.parquet")])
    assert missing.exit_code == 2
    assert "no file" in missing.output


def test_steps_are_measured_each_by_itself_in_any_order():
    log = planted("stale", 0.1, 0, sequences=12, length=8, steps=3)
    mixed = replace(log, step=np.tile(np.arange(3), 4))
    for row in diagnosis_of(mixed).steps:
        alone = measure(mixed.where(mixed.step == row["step"]))
        assert row["std_rho"] == alone["std_rho"]
        assert row["log_ppl_abs_diff"] == alone["log_ppl_abs_diff"]


def test_every_column_is_documented():
    text = (Path(__file__).resolve().parents[2] / "docs" / "diagnosis.md").read_text()
    for name, column in COLUMNS.items():
        assert f"`{name}`" in text
        assert all(alias in text for alias in column.aliases)
