"""What a run is made of, and the state that it carries from step to step."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from simlab.engines.engine import EnginePair
from simlab.models.config import TransformerConfig
from simlab.models.parameters import Params
from simlab.objectives import Objective
from simlab.rollout.sampler import Sampler
from simlab.tasks import VOCABULARY_SIZE, Task
from simlab.training.optimizer import AdamW
from simlab.training.schedules import Constant, Schedule

Number = Any  # a Python number or a traced scalar
EXTRA_TERMS = ("entropy", "kl")


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["engines", "objective", "optimizer", "sampler", "schedule", "extra_terms"],
    meta_fields=["task", "model", "prompts", "group_size", "minibatches"],
)
@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides a run but its seed and its first parameters.

    The fields before `task` are data: all their numbers (formats of the engines, clip ranges, learning rate,
    temperature, coefficients of the extra terms) may be traced, stacked and mapped over. The others shape the
    program. One step samples `prompts` x `group_size` responses and makes `minibatches` updates, each
    on whole groups. `extra_terms` maps `entropy` and `kl` to coefficients; a term not named is left out.

    Raises `ValueError` for an unknown term and sizes that do not fit together.
    """

    engines: EnginePair
    objective: Objective
    optimizer: AdamW = field(default_factory=AdamW)
    sampler: Sampler = field(default_factory=Sampler)
    schedule: Schedule = field(default_factory=Constant)
    extra_terms: Mapping[str, Number] = field(default_factory=dict)
    task: Task
    model: TransformerConfig
    prompts: int = 8
    group_size: int = 16
    minibatches: int = 4

    def __post_init__(self):
        """Refuse what cannot run."""
        for name in self.extra_terms:
            if name not in EXTRA_TERMS:
                raise ValueError(f"unknown extra term {name!r}; allowed: {', '.join(EXTRA_TERMS)}")
        if self.minibatches < 1 or self.prompts % self.minibatches:
            raise ValueError(f"minibatches {self.minibatches} does not divide the {self.prompts} prompts")
        if self.model.vocab_size < VOCABULARY_SIZE:
            raise ValueError(f"vocab_size {self.model.vocab_size}; the tasks need at least {VOCABULARY_SIZE}")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """Parameters, moments, step (int32), the key of the run, and the first parameters where a KL needs them.

    The key never changes: every step draws from the stream of its own number.
    """

    params: Params
    moments: Any
    step: Array
    key: Array
    reference: Params | None


def initial_state(recipe: Recipe, params: Params, key: Array) -> TrainState:
    """Return the state before the first step from `params`, in arrays of its own: the loop donates them."""

    def copied(tree: Any) -> Any:
        return jax.tree.map(jnp.copy, tree)

    return TrainState(
        params=copied(params),
        moments=recipe.optimizer.init(params),
        step=jnp.zeros((), jnp.int32),
        key=copied(key),
        reference=copied(params) if "kl" in recipe.extra_terms else None,
    )
