"""Names of engine pairs: any two engines, and errors that name the unknown one."""

import re

import pytest

from simlab.engines import ENGINE_PAIRS, ENGINES, find_pair


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("f32/nope", "unknown inference engine of the pair 'f32/nope', 'nope'; allowed: f32, bf16, "),
        ("nope/f32", "unknown training engine of the pair 'nope/f32', 'nope'; allowed: f32, bf16, "),
        ("f32/", "unknown inference engine of the pair 'f32/', ''; allowed: f32, bf16, "),
        ("f32/bf17", "unknown inference engine of the pair 'f32/bf17', 'bf17'; did you mean 'bf16'?"),
        ("f32/bf16/fp16", "unknown engine pair 'f32/bf16/fp16'; did you mean 'f32/bf16'?"),
        ("f32", "unknown engine pair 'f32'; did you mean 'f32/f32'?"),
    ],
)
def test_find_pair_names_the_unknown_engine(name, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        find_pair(name)


def test_find_pair_joins_any_two_engines():
    pair = find_pair("mxfp8/nvfp4")
    assert "mxfp8/nvfp4" not in ENGINE_PAIRS
    assert (pair.train, pair.infer) == (ENGINES["mxfp8"], ENGINES["nvfp4"])
