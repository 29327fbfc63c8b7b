import subprocess
import sys

import jax
import numpy as np
import pytest

from simlab.core.streams import draw_array, stream


def test_streams_differ_by_name_and_by_key():
    key = jax.random.key(0)
    draws = {
        tuple(np.asarray(jax.random.key_data(stream(k, n))))
        for n in ("a", "b")
        for k in (key, jax.random.key(1))
    }
    assert len(draws) == 4


def test_stream_is_the_same_in_another_process():
    # Python's own hash is salted per process; a stream id must not be.
    code = (
        "import jax; from simlab.core.streams import stream;"
        "print(jax.random.key_data(stream(jax.random.key(7), 'rollout')).tolist())"
    )
    there = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert there == str(jax.random.key_data(stream(jax.random.key(7), "rollout")).tolist())


@pytest.mark.parametrize("draw", [jax.random.normal, jax.random.uniform, jax.random.bits])
def test_draw_array_has_the_bits_of_its_shape(draw):
    key, shape = jax.random.key(3), (3, 5, 7)
    np.testing.assert_array_equal(draw_array(draw, key, shape), draw(key, shape))
