"""The comparison of a card with its models, a model in place of the card."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from experiments.measurements import local_gpu
from simlab.engines import matmul
from simlab.engines.kernel_order import SplitK
from simlab.engines.tensor_core import TENSOR_CORES


def test_the_order_of_a_card_is_found(monkeypatch):
    monkeypatch.setattr(local_gpu, "TENSOR_CORES", {"ampere": TENSOR_CORES["ampere"]})
    order = SplitK(TENSOR_CORES["ampere"]["bf16"], 2)
    # Nine tiles of 32 products make ranges of five and four, which no other candidate adds.
    rows = local_gpu.compare(lambda a, b, _: matmul(a, b, accumulator=order), (16, 288, 16), "bf16", 2.0, 0)
    assert [row["candidate"] for row in rows if row["equal"] == 1] == ["ampere bf16, split-K 2"]
    assert all((row["worst_ulp"] == 0) == (row["equal"] == 1) for row in rows)
    assert local_gpu.best("bf16", rows).startswith("bf16: ampere bf16, split-K 2, 100.00% ")


def test_numbers_between_two_numbers_are_counted():
    x = np.array([1, -1, 0, 2.0**-149, 1], np.float32)
    y = np.array([np.nextafter(np.float32(1), 2), 1, -0.0, -(2.0**-149), 1], np.float32)
    one = int(np.float32(1).view(np.int32))
    assert local_gpu.steps_apart(x, y).tolist() == [1, 2 * one, 0, 2, 0]


def test_without_a_card_it_stops_before_any_compute(monkeypatch):
    monkeypatch.setattr(local_gpu, "native", None)
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    with pytest.raises(SystemExit, match=r"needs a GPU.*only: cpu"):
        local_gpu.run(SimpleNamespace(smoke=False))  # type: ignore[arg-type]
