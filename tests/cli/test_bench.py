"""`simlab bench`: errors of batch sizes; the smoke test of its experiment covers the measurement."""

import pytest
from typer.testing import CliRunner

from experiments.benchmarks.device_speed import Ceilings
from experiments.benchmarks.step_floor import Product
from simlab.cli import app


@pytest.mark.parametrize("batch_sizes", ["0", "1,x", "", "1e9", "-4"])
def test_bench_rejects_invalid_batch_sizes(batch_sizes, tmp_path):
    result = CliRunner().invoke(
        app, ["bench", f"--batch-sizes={batch_sizes}", "--out", str(tmp_path / "out")]
    )
    assert result.exit_code == 2
    assert f"such as 1,4,16, got {batch_sizes!r}." in result.stderr.replace("\n", " ")
    assert not list((tmp_path / "out").glob("*.parquet"))


def test_ceilings_bound_products_by_the_lower_ceiling():
    square, column = Product(1, 100, 100, 100), Product(2, 100, 100, 1)
    assert (square.flops, square.bytes) == (2e6, 120_000)
    assert (column.flops, column.bytes) == (4e4, 2 * 4 * 10_200)
    limit = Ceilings(operations=1e9, bytes=1e8)
    # The square is bound by arithmetic, the column by memory; two runs take twice as long.
    assert limit.seconds({square: 3, column: 1}, 2) == pytest.approx(2 * (3 * 2e-3 + 8.16e-4))
