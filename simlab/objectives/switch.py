"""Objectives as a sweep axis: one compiled function that holds several and picks by index."""

from collections.abc import Sequence

import jax

from simlab.objectives.batch import Array, TokenBatch
from simlab.objectives.catalog import OBJECTIVES
from simlab.objectives.evaluate import token_coefficients
from simlab.objectives.objective import Objective


def switch_coefficients(
    index: Array | int, batch: TokenBatch, objectives: Sequence[str | Objective] = tuple(OBJECTIVES)
) -> Array:
    """Token coefficients [B, T] of `objectives[index]`; `index` may be traced, out of range it is clamped.

    Under `vmap` over the index every branch is computed and one is selected: cheap, since all work on [B, T]
    arrays. The batch must carry what any of the objectives needs (`key`, `values`).
    """
    branches = [
        lambda batch, objective=objective: token_coefficients(objective, batch) for objective in objectives
    ]
    return jax.lax.switch(index, branches, batch)
