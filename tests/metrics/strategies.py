"""Batches whose two engines disagree by up to 3 in the log, and one program that measures them all."""

import jax
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from simlab.metrics import METRICS
from simlab.objectives import TokenBatch

# Every batch in the tests of this package has this shape, so that the program is compiled once.
SHAPE = (4, 5)


@jax.jit
def compiled(batch: TokenBatch) -> dict[str, jax.Array]:
    """All metrics of a [4, 5] batch."""
    return {name: metric(batch) for name, metric in METRICS.items()}


def measure(batch: TokenBatch) -> dict[str, np.ndarray]:
    """All metrics of a [4, 5] batch, in float64."""
    return {name: np.asarray(value, np.float64) for name, value in compiled(batch).items()}


def batches(masks=None) -> st.SearchStrategy[TokenBatch]:
    """Any [4, 5] batch in groups of two; by default with any mask that has a token."""
    some = arrays(bool, SHAPE).filter(lambda mask: mask.any())
    return st.builds(_batch, _numbers(-6, 0), _numbers(-3, 3), some if masks is None else masks)


def _numbers(low: float, high: float):
    return arrays(np.float32, SHAPE, elements=st.floats(low, high, width=32))


def _batch(logp_train, log_rho, mask) -> TokenBatch:
    rewards = np.array([1, 0, 0.5, 0.25], np.float32)
    logp_train = logp_train + np.minimum(log_rho, 0)  # so that logp_infer is a log-probability too
    return TokenBatch(logp_train, logp_train, logp_train - log_rho, rewards, mask, 2)
