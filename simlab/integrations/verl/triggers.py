"""Learning rates that react to the run, as plain Python: twins of `simlab.training.schedules`.

A trigger notes one number a step and says by what the learning rate is multiplied.
"""

import math
from statistics import median
from typing import Any, Protocol

from simlab.integrations.verl.settings import Settings


class Trigger(Protocol):
    """What observes one number a step, `metric`, and gives the factor of the step to come."""

    metric: str

    def observe(self, value: float) -> float:
        """Note this step's number and return the next step's factor."""
        ...


class LengthTriggered:
    """Halves every `delay` x surge steps, down to `final`, once the response length has surged.

    Reference: lr Alg. 1, Sec. 3.3, 4.2.
    """

    metric = "response_length"

    def __init__(self, settings: Settings):
        """Start without a memory."""
        self.settings, self.steps, self.first, self.above, self.surge = settings, 0, [], 0, math.inf

    def observe(self, value: float) -> float:
        """Note the mean response length of a step and return the next step's factor."""
        if self.steps < self.settings.early:
            self.first.append(value)
        else:
            self.above = self.above + 1 if value > self.settings.rise * median(self.first) else 0
            if self.above >= self.settings.patience and math.isinf(self.surge):
                self.surge = self.steps + 2 - self.above
        self.steps += 1
        if math.isinf(self.surge):
            return 1.0
        return max(2.0 ** -((self.steps + 1) // (self.settings.delay * self.surge)), self.settings.final)


class MismatchTriggered:
    """Halves, down to `final`, when the smoothed mismatch is `rise` times its first level."""

    metric = "rms_log_rho"

    def __init__(self, settings: Settings):
        """Start without a memory."""
        self.settings, self.steps, self.quiet = settings, 0, 0.0
        self.initial = self.smoothed = 0.0
        self.factor = 1.0

    def observe(self, value: float) -> float:
        """Note the mismatch of a step and return the next step's factor."""
        rule, finite = self.settings, math.isfinite(value)
        learning = self.steps < rule.mismatch_early
        if learning and finite:
            self.initial += (value - self.initial) / (self.steps + 1)
            self.smoothed = self.initial
        elif finite:
            self.smoothed += (1 - rule.smoothing) * (value - self.smoothed)
        too_high = not finite or self.smoothed > rule.rise * self.initial
        rings = not learning and self.quiet <= 0 and too_high
        self.quiet = rule.cooldown if rings else self.quiet - 1
        self.factor = max(self.factor / 2, rule.final) if rings else self.factor
        self.steps += 1
        return self.factor


TRIGGERS: dict[str, type] = {"length-triggered": LengthTriggered, "mismatch-triggered": MismatchTriggered}


def trigger_of(settings: Settings) -> Any:
    """The trigger that the settings ask for."""
    assert settings.schedule is not None
    return TRIGGERS[settings.schedule](settings)
