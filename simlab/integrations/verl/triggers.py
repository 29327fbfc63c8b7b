"""Triggered learning rates in plain Python, equal to those of `simlab.training.schedules`.

A trigger observes one number per step, its `metric`, and returns the factor of the learning rate.
"""

import math
from statistics import median

from simlab.integrations.verl.settings import Settings


class LengthTrigger:
    """Halve the factor every `delay` x surge steps, down to `final`, once the response length has surged.

    Reference: lr Alg. 1, Sec. 3.3, 4.2.
    """

    metric = "response_length"

    def __init__(self, settings: Settings):
        """Start before the first step."""
        self.settings, self.steps, self.first, self.above, self.surge = settings, 0, [], 0, math.inf

    def observe(self, value: float) -> float:
        """Record the mean response length of a step and return the factor of the next step."""
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


class MismatchTrigger:
    """Halve the factor, down to `final`, when the smoothed mismatch is `rise` times its initial level."""

    metric = "rms_log_rho"

    def __init__(self, settings: Settings):
        """Start before the first step."""
        self.settings, self.steps, self.quiet = settings, 0, 0.0
        self.initial = self.smoothed = 0.0
        self.factor = 1.0

    def observe(self, value: float) -> float:
        """Record the mismatch of a step and return the factor of the next step."""
        rule, finite = self.settings, math.isfinite(value)
        learning = self.steps < rule.mismatch_early
        if learning and finite:
            self.initial += (value - self.initial) / (self.steps + 1)
            self.smoothed = self.initial
        elif finite:
            self.smoothed += (1 - rule.smoothing) * (value - self.smoothed)
        too_high = not finite or self.smoothed > rule.rise * self.initial
        triggered = not learning and self.quiet <= 0 and too_high
        self.quiet = rule.cooldown if triggered else self.quiet - 1
        self.factor = max(self.factor / 2, rule.final) if triggered else self.factor
        self.steps += 1
        return self.factor


Trigger = LengthTrigger | MismatchTrigger
TRIGGERS: dict[str, type[Trigger]] = {
    "length-triggered": LengthTrigger,
    "mismatch-triggered": MismatchTrigger,
}


def build_trigger(settings: Settings) -> Trigger:
    """Return the trigger of `settings.schedule`."""
    assert settings.schedule is not None
    return TRIGGERS[settings.schedule](settings)
