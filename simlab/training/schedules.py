"""Schedules of the learning rate: functions of the step, from records whose numbers may be traced."""

from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array

Number = Any  # a Python number or a traced scalar


class Schedule(Protocol):
    """Whatever says which part of the learning rate a step takes."""

    def __call__(self, step: Array) -> Array:
        """Return the factor in [0, 1] at `step`, int32 from 0, float32 scalar."""
        ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Constant:
    """Factor 1 after a linear rise over `warmup` steps."""

    warmup: Number = 0

    def __call__(self, step: Array) -> Array:
        """Return the factor."""
        return _rise(step, self.warmup)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Linear:
    """A straight fall from 1 to `final` between the warm-up and step `steps`, `final` from then on."""

    steps: Number
    final: Number = 0.0
    warmup: Number = 0

    def __call__(self, step: Array) -> Array:
        """Return the factor."""
        done = _done(step, self.warmup, self.steps)
        return _rise(step, self.warmup) * (1 - (1 - self.final) * done)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Cosine:
    """Half a cosine from 1 to `final` between the warm-up and step `steps`, `final` from then on.

    Source: cancel App. D.
    """

    steps: Number
    final: Number = 0.0
    warmup: Number = 0

    def __call__(self, step: Array) -> Array:
        """Return the factor."""
        done = _done(step, self.warmup, self.steps)
        return _rise(step, self.warmup) * (self.final + (1 - self.final) * (1 + jnp.cos(jnp.pi * done)) / 2)


def _rise(step: Array, warmup: Number) -> Array:
    # The first step already learns: factor 1 / warmup, not 0.
    return jnp.minimum(1.0, (_float(step) + 1.0) / jnp.maximum(1.0, _float(warmup)))


def _done(step: Array, warmup: Number, steps: Number) -> Array:
    start = _float(warmup)
    return jnp.clip((_float(step) - start) / jnp.maximum(1.0, _float(steps) - start), 0.0, 1.0)


def _float(number: Number) -> Array:
    return jnp.asarray(number).astype(jnp.float32)


SCHEDULES: dict[str, type[Schedule]] = {"constant": Constant, "linear": Linear, "cosine": Cosine}
