"""Scales that a product cannot apply are an error of the config, before anything is computed."""

import pytest

from simlab.sweeps import run_config
from simlab.sweeps.grids import listed
from simlab.sweeps.sweep import prepare
from tests.sweeps.small import BASE

BLOCKS = {"granularity": "block", "block": 16}


def _changed(engine, side="weights", scaling: object = "per-token", part="projection"):
    return {"name": f"f32/{engine}", "infer": {part: {side: {"scaling": scaling}}}}


@pytest.mark.parametrize(
    ("engines", "message"),
    [
        (
            _changed("fp8-e4m3"),
            r"infer.projection.weights.scaling must fit .* got per token: .* 32 terms",
        ),
        (_changed("fp8-e4m3", scaling=BLOCKS), r"infer.projection.weights.scaling .* got per block of 16: "),
        (_changed("nvfp4", scaling="int4-g32"), r"infer.projection.weights.scaling .* got per block of 32: "),
    ],
)
def test_scales_along_the_sum_are_refused_by_field(engines, message):
    with pytest.raises(ValueError, match=f"engines.{message}"):
        run_config({**BASE, "engines": engines})


def test_fifth_engine_is_checked_before_any_compute(tmp_path):
    # The forecast traces the first four groups only.
    engines = ["f32/f32", "f32/bf16", "f32/fp16", "f32/fp8-e4m3", _changed("fp8-e4m3")]
    points = listed({str(index): {"engines": each} for index, each in enumerate(engines)})
    with pytest.raises(ValueError, match=r"engines.infer.projection.weights.scaling must .* \(at 4\)"):
        prepare(BASE, points, tmp_path, 4)


@pytest.mark.parametrize("pair", ["f32/fp8-block128", "fp8-block128/fp8-block128", "f32/nvfp4", "f32/mxfp8"])
def test_scales_of_the_catalog_fit_their_products(pair):
    run_config({**BASE, "engines": pair})
