"""Files of the verl plug-in's dump; test_verl_plugin has the dump inside verl."""

import sys

import numpy as np
import pytest

from simlab.diagnosis import read_log
from simlab.integrations.verl.dump_writer import ROWS_PER_BATCH, write_rows
from tests.tolerances import assert_exact


@pytest.mark.parametrize("arrow", [True, False])
def test_a_dump_is_read_as_it_was_written(tmp_path, monkeypatch, arrow):
    count = ROWS_PER_BATCH + 3
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 5, count)
    logps = [-rng.random(length, np.float32) for length in lengths]
    rows = [
        {
            "step": 4,
            "mask": np.ones(len(logp), np.int8),
            "logp_train": logp,
            "logp_infer": logp,
            "logp": logp,
            "ids": np.arange(len(logp), dtype=np.int32),
            "experts_infer": np.arange(6 * len(logp), dtype=np.int16),
            "top_k": 2,
            "reward": 0.5,
            "group": f"prompt-{number % 5}",
            "version": 3,
            "update": number % 4,
            "micro_batch": number // 2,
        }
        for number, logp in enumerate(logps)
    ]
    if not arrow:
        with monkeypatch.context() as without:
            without.setitem(sys.modules, "pyarrow", None)
            path = write_rows(rows, tmp_path, "step_000004")
    else:
        path = write_rows(rows, tmp_path, "step_000004")
    assert [file.name for file in tmp_path.iterdir()] == [f"step_000004.{'parquet' if arrow else 'jsonl'}"]
    read = read_log(path)
    assert not read.problems
    log = read.log
    assert_exact(log.lengths, lengths)
    assert_exact(log.logp, np.concatenate(logps))
    assert log.experts_infer is not None
    assert log.experts_infer.shape == (lengths.sum(), 6)
    assert log.top_k == 2
    assert_exact(log.update, np.arange(count) % 4)
