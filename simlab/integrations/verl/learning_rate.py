"""Multiply verl's learning rate schedule by a factor that reacts to the run."""

# pyright: reportMissingImports=false

from collections.abc import Callable

import torch
import torch.distributed
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from simlab.core.json_value import Json
from simlab.integrations.verl.settings import Settings
from simlab.integrations.verl.triggers import build_trigger


class StepSums:
    """Sum over the micro-batches of a step: tokens, sequences, squared log of the IS weights."""

    def __init__(self):
        """Start at zero."""
        self.sums = torch.zeros(3, dtype=torch.float64)

    def add(self, mask: torch.Tensor, weights: torch.Tensor | None) -> None:
        """Add a micro-batch; without weights its mismatch is 0."""
        real = mask.bool()
        squares = 0.0
        if weights is not None:
            logs = weights.detach().float().clamp(min=1e-9).log()
            squares = float((logs[real] ** 2).sum())
        self.sums += torch.tensor([float(real.sum()), float(real.any(1).sum()), squares], dtype=torch.float64)

    def pop_means(self) -> dict[str, float]:
        """Return the means of the step over all ranks, so that all decide equally, and reset."""
        sums, self.sums = self.sums, torch.zeros(3, dtype=torch.float64)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
            sums = sums.to(device)
            torch.distributed.all_reduce(sums)
        tokens, sequences, squares = sums.tolist()
        return {
            "response_length": tokens / max(sequences, 1.0),
            "rms_log_rho": (squares / max(tokens, 1.0)) ** 0.5,
        }


STEP_SUMS = StepSums()
"""Sums of this process: the policy losses add to them, the scheduler reads them."""


class TriggeredScheduler:
    """Multiply the learning rates of verl's scheduler `inner` by the factor of a trigger."""

    def __init__(self, inner: LRScheduler, settings: Settings, sums: StepSums = STEP_SUMS):
        """Start with a factor of one."""
        self.inner, self.trigger, self.sums, self.factor = inner, build_trigger(settings), sums, 1.0

    def step(self) -> None:
        """Advance both, and set the learning rates of the optimizer."""
        self.factor = self.trigger.observe(self.sums.pop_means()[self.trigger.metric])
        self.inner.step()
        for group, rate in zip(self.inner.optimizer.param_groups, self.get_last_lr(), strict=True):
            group["lr"] = rate

    def get_last_lr(self) -> list[float]:
        """Return the current learning rates."""
        return [rate * self.factor for rate in self.inner.get_last_lr()]

    def state_dict(self) -> dict[str, Json]:
        """Return the state for a checkpoint."""
        trigger_state = {name: value for name, value in vars(self.trigger).items() if name != "settings"}
        return {"inner": self.inner.state_dict(), "trigger": trigger_state, "factor": self.factor}

    def load_state_dict(self, state: dict[str, Json]) -> None:
        """Resume from `state_dict`, or from a checkpoint of verl without the plug-in."""
        if "trigger" not in state:
            self.inner.load_state_dict(state)
            return
        self.inner.load_state_dict(state["inner"])
        vars(self.trigger).update(state["trigger"])
        self.factor = state["factor"]


def wrap_lr_scheduler(
    build: Callable[[object, Optimizer], LRScheduler], settings: Settings
) -> Callable[[object, Optimizer], TriggeredScheduler]:
    """Wrap `FSDPEngine._build_lr_scheduler`."""

    def build_with_trigger(engine: object, optimizer: Optimizer) -> TriggeredScheduler:
        return TriggeredScheduler(build(engine, optimizer), settings)

    return build_with_trigger
