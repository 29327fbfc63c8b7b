"""Schedules of the learning rate: functions of the step, from records whose numbers may be traced.

A schedule that reacts to the run keeps a `schedule_state` of past metrics in the train state.
"""

from abc import ABC, abstractmethod
from typing import Annotated, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, PyTree

from simlab.core.catalog import lookup
from simlab.core.pytree import Integer, Scalar, pytree, static
from simlab.core.ranges import FRACTION, HUGE, STEPS, Range


class Schedule(ABC):
    """Factor of the learning rate by step.

    One that reacts to the run has a schedule_state, a tree of arrays that `init` makes and `observe` renews.
    """

    def init(self) -> PyTree:
        """Return the schedule_state before the first step."""
        return None

    @abstractmethod
    def __call__(self, step: Int[Array, ""], schedule_state: PyTree = None, /) -> Float[Array, ""]:
        """Return the factor in [0, 1] at `step`, int32 from 0, float32 scalar."""

    def observe(self, schedule_state: PyTree, _step: Int[Array, ""], _metrics: dict[str, Array], /) -> PyTree:
        """Return the schedule_state after a step, given its number and the metrics of the train step."""
        return schedule_state


@pytree(kw_only=True)
class Constant(Schedule):
    """Factor 1 after a linear rise over `lr_warmup_steps` steps."""

    lr_warmup_steps: Annotated[Integer, Range(0, HUGE)] = 0

    def __call__(self, step: Int[Array, ""], _: PyTree = None) -> Float[Array, ""]:
        """Return the factor."""
        return _warmup_factor(step, self.lr_warmup_steps)


@pytree(kw_only=True)
class LinearDecay(Schedule):
    """Straight line from 1 at the end of the warm-up to `min_lr_ratio` at step `steps`, then constant."""

    steps: Annotated[Integer, STEPS] = 400
    min_lr_ratio: Annotated[Scalar, FRACTION] = 0.0
    lr_warmup_steps: Annotated[Integer, Range(0, HUGE)] = 0

    def __call__(self, step: Int[Array, ""], _: PyTree = None) -> Float[Array, ""]:
        """Return the factor."""
        done = _progress(step, self.lr_warmup_steps, self.steps)
        return _warmup_factor(step, self.lr_warmup_steps) * (1 - (1 - self.min_lr_ratio) * done)


@pytree(kw_only=True)
class Cosine(Schedule):
    """Half a cosine from 1 at the end of the warm-up to `min_lr_ratio` at step `steps`, then constant.

    Reference: cancel App. I; SGDR arXiv 1608.03983.
    """

    steps: Annotated[Integer, STEPS] = 400
    min_lr_ratio: Annotated[Scalar, FRACTION] = 0.0
    lr_warmup_steps: Annotated[Integer, Range(0, HUGE)] = 0

    def __call__(self, step: Int[Array, ""], _: PyTree = None) -> Float[Array, ""]:
        """Return the factor."""
        done = _progress(step, self.lr_warmup_steps, self.steps)
        return _warmup_factor(step, self.lr_warmup_steps) * (
            self.min_lr_ratio + (1 - self.min_lr_ratio) * (1 + jnp.cos(jnp.pi * done)) / 2
        )


@pytree(kw_only=True)
class Halving(Schedule):
    """Halves at every multiple of `period`, down to `min_lr_ratio`.

    `period` is T_decay of the paper. Whether the length has surged is not read. The paper counts steps from 1
    and simlab from 0, so the first halved step is number `period` - 1 here.

    Reference: lr Alg. 1.
    """

    period: Integer = 100
    min_lr_ratio: Annotated[Scalar, FRACTION] = 0.1
    lr_warmup_steps: Annotated[Integer, Range(0, HUGE)] = 0

    def __call__(self, step: Int[Array, ""], _: PyTree = None) -> Float[Array, ""]:
        """Return the factor."""
        return _warmup_factor(step, self.lr_warmup_steps) * _halving_factor(
            step, self.period, self.min_lr_ratio
        )


class LengthTriggerState(NamedTuple):
    """State of `LengthTriggered`: `early` lengths, how many are `seen`, how many `above` in a row now.

    `surge` is the step, from 1, at which the length surged; infinite until then.
    """

    early: Float[Array, " early"]
    seen: Int[Array, ""]
    above: Int[Array, ""]
    surge: Float[Array, ""]


@pytree(kw_only=True)
class LengthTriggered(Schedule):
    """Halves every `delay` x surge steps, down to `min_lr_ratio`, once the response length has surged.

    The surge is the first of `patience` steps in a row whose mean response length is above `rise` times the
    median of the first `early` (static) steps. Before the surge only the warm-up acts.

    Reference: lr Alg. 1, Sec. 3.3, 4.2.
    Deviation: the paper finds the surge by eye after a run; here it is defined, and only past steps are read.
        A surge that is confirmed after the end of its first period is answered at the next step.
    """

    rise: Scalar = 2.0
    patience: Integer = 3
    delay: Scalar = 1.8
    min_lr_ratio: Annotated[Scalar, FRACTION] = 0.1
    lr_warmup_steps: Annotated[Integer, Range(0, HUGE)] = 0
    early: int = static(default=10)

    def init(self) -> LengthTriggerState:
        """Return a schedule_state without lengths."""
        zero = jnp.zeros((), jnp.int32)
        return LengthTriggerState(jnp.zeros(self.early, jnp.float32), zero, zero, jnp.float32(jnp.inf))

    def __call__(self, step: Int[Array, ""], schedule_state: PyTree = None) -> Float[Array, ""]:
        """Return the factor."""
        return _warmup_factor(step, self.lr_warmup_steps) * _halving_factor(
            step, self.delay * schedule_state.surge, self.min_lr_ratio
        )

    def observe(
        self, schedule_state: LengthTriggerState, step: Int[Array, ""], metrics: dict[str, Array]
    ) -> LengthTriggerState:
        """Note `response_length`."""
        length = metrics["response_length"]
        collecting = schedule_state.seen < self.early
        here = (jnp.arange(self.early) == schedule_state.seen) & collecting
        high = ~collecting & (length > self.rise * jnp.median(schedule_state.early))
        above = jnp.where(high, schedule_state.above + 1, 0)
        surged = (_float(above) >= self.patience) & jnp.isinf(schedule_state.surge)
        first = _float(step) + 2.0 - _float(above)
        return LengthTriggerState(
            jnp.where(here, length, schedule_state.early),
            jnp.minimum(schedule_state.seen + 1, self.early),
            above,
            jnp.where(surged, first, schedule_state.surge),
        )


class MismatchTriggerState(NamedTuple):
    """State of `MismatchTriggered`, float32 scalars: the `initial` level, the `smoothed` one, the `factor`.

    `seen` counts the steps so far, `quiet` the steps until the next halving is possible.
    """

    initial: Float[Array, ""]
    smoothed: Float[Array, ""]
    factor: Float[Array, ""]
    seen: Float[Array, ""]
    quiet: Float[Array, ""]


@pytree(kw_only=True)
class MismatchTriggered(Schedule):
    """Halves, down to `min_lr_ratio`, when the smoothed mismatch is above `rise` times its initial level.

    The initial level is the mean of `metric` (static: the name of a step metric that is a scalar) over the
    first `early` steps; after them it is smoothed by `smoothing` x old + (1 - `smoothing`) x new. For
    `cooldown` steps after a halving there is no other; the learning rate never rises again. A value that is
    not finite triggers a halving, but does not enter the means. If the initial level is zero, any mismatch
    triggers one.

    No paper has this schedule: lr takes the response length as an early sign of the mismatch, this takes the
    mismatch itself.
    """

    rise: Scalar = 2.0
    early: Integer = 20
    smoothing: Scalar = 0.9
    cooldown: Integer = 20
    min_lr_ratio: Annotated[Scalar, FRACTION] = 0.1
    lr_warmup_steps: Annotated[Integer, Range(0, HUGE)] = 0
    metric: str = static(default="rms_log_rho")

    def init(self) -> MismatchTriggerState:
        """Return a schedule_state without steps."""
        zero = jnp.zeros((), jnp.float32)
        return MismatchTriggerState(zero, zero, jnp.ones((), jnp.float32), zero, zero)

    def __call__(self, step: Int[Array, ""], schedule_state: PyTree = None) -> Float[Array, ""]:
        """Return the factor."""
        return _warmup_factor(step, self.lr_warmup_steps) * schedule_state.factor

    def observe(
        self, schedule_state: MismatchTriggerState, _: Int[Array, ""], metrics: dict[str, Array]
    ) -> MismatchTriggerState:
        """Note the mismatch, and halve if it is too high."""
        level = lookup(metrics, self.metric, "step metric")
        finite, learning = jnp.isfinite(level), schedule_state.seen < self.early
        mean = schedule_state.initial + (level - schedule_state.initial) / (schedule_state.seen + 1)
        followed = schedule_state.smoothed + (1 - self.smoothing) * (level - schedule_state.smoothed)
        initial = jnp.where(learning & finite, mean, schedule_state.initial)
        smoothed = jnp.where(finite, jnp.where(learning, initial, followed), schedule_state.smoothed)
        halves = ~learning & (schedule_state.quiet <= 0) & (~finite | (smoothed > self.rise * initial))
        return MismatchTriggerState(
            initial,
            smoothed,
            jnp.where(
                halves, jnp.maximum(schedule_state.factor / 2, self.min_lr_ratio), schedule_state.factor
            ),
            schedule_state.seen + 1,
            jnp.where(halves, _float(self.cooldown), schedule_state.quiet - 1),
        )


def _warmup_factor(step: Int[Array, ""], lr_warmup_steps: Integer) -> Float[Array, ""]:
    # The first step already learns: factor 1 / lr_warmup_steps, not 0.
    return jnp.minimum(1.0, (_float(step) + 1.0) / jnp.maximum(1.0, _float(lr_warmup_steps)))


def _progress(step: Int[Array, ""], lr_warmup_steps: Integer, steps: Integer) -> Float[Array, ""]:
    start = _float(lr_warmup_steps)
    return jnp.clip((_float(step) - start) / jnp.maximum(1.0, _float(steps) - start), 0.0, 1.0)


def _halving_factor(step: Int[Array, ""], period: Scalar | Integer, min_lr_ratio: Scalar) -> Float[Array, ""]:
    halvings = jnp.floor((_float(step) + 1.0) / _float(period))
    return jnp.maximum(jnp.ldexp(jnp.float32(1), -halvings.astype(jnp.int32)), min_lr_ratio)


def _float(number: Scalar | Integer) -> Float[Array, ""]:
    return jnp.asarray(number).astype(jnp.float32)


SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "linear": LinearDecay,
    "cosine": Cosine,
    "halving": Halving,
    "length-triggered": LengthTriggered,
    "mismatch-triggered": MismatchTriggered,
}
