"""The parts that arms change: objectives, schedules and engines, as parts of a run config."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from experiments.regimes import BASE
from simlab.core.json_value import Json
from simlab.studies.arms import Arm
from simlab.training.optimizer import AdamW
from simlab.training.schedules import Halving

PILOT_STEPS = Arm("pilot").steps
WARMUP, PERIOD = BASE["schedule"]["lr_warmup_steps"], PILOT_STEPS // 4
EQUAL = "f32/f32"
RATE = BASE.get("optimizer", {}).get("learning_rate", AdamW().learning_rate)


def objective(name: str, **numbers: Json) -> dict[str, Json]:
    """Return the objective `name` with overrides, as a change of the config."""
    return {"objective": {"name": name, **numbers}}


def schedule(name: str, **numbers: Json) -> dict[str, Json]:
    """Return the schedule `name` after the warm-up of the regime, as a change of the config."""
    return {"schedule": {"name": name, "lr_warmup_steps": WARMUP, **numbers}}


def with_halving(arm: Arm) -> Arm:
    """Return the arm with its learning rate halved every quarter of the run."""
    return _change(arm, "halving", schedule("halving", period=PERIOD))


def at_mean_rate(arm: Arm) -> Arm:
    """Return the arm at the constant rate whose mean is that of `with_halving`, after the same warm-up."""
    return _change(arm, "mean rate of halving", {"optimizer.learning_rate": RATE * _mean_of_halving()})


def _change(arm: Arm, words: str, changes: Mapping[str, Json]) -> Arm:
    label = arm.label and f"{arm.label}, {words}"
    return replace(arm, id=f"{arm.id}, {words}", label=label, changes={**arm.changes, **changes})


def _mean_of_halving() -> float:
    """Return the mean rate of halving every `PERIOD` steps over that of a constant rate, with warm-ups."""
    least = float(Halving(period=PERIOD).min_lr_ratio)
    constant = [min(1.0, (step + 1) / WARMUP) for step in range(PILOT_STEPS)]
    lowered = [factor * max(0.5 ** ((step + 1) // PERIOD), least) for step, factor in enumerate(constant)]
    return sum(lowered) / sum(constant)


@dataclass(frozen=True)
class NoisyEngine:
    """An inference engine with some of its sites changed; the training engine computes in float32."""

    inference_engine: str
    sites: Mapping[str, Json] = field(default_factory=dict)

    def engines(self, **spared: Json) -> dict[str, Json]:
        """Return the pair, with other sites of the inference engine changed."""
        return {"engines": {"name": f"f32/{self.inference_engine}", "infer": {**self.sites, **spared}}}

    def exact(self) -> dict[str, Json]:
        """Return the pair whose training engine rounds equally."""
        both = {"train": self.sites, "infer": self.sites}
        return {"engines": {"name": f"{self.inference_engine}/{self.inference_engine}", **both}}


def narrow(engine: str, activations: int, weights: int, **how: str) -> NoisyEngine:
    """Return an engine whose products read numbers of that many mantissa bits."""
    bits = {"activations": activations, "weights": weights}
    sites = {name: {"format": {"mantissa_bits": n}, **how} for name, n in bits.items()}
    return NoisyEngine(engine, {"projection": sites})


def one_bit(rounding: str) -> dict[str, Json]:
    """Return engines whose weights alone differ: one mantissa bit of E4M3, a scale per column."""
    e4m3 = {"name": "e4m3fn", "mantissa_bits": 1}
    weights = {"format": e4m3, "rounding": rounding, "scaling": "per-channel"}
    return {"engines": {"name": EQUAL, "infer": {"projection": {"weights": weights}}}}


NEAREST = narrow("fp8-e4m3", activations=2, weights=1)
TRUNCATED = narrow("fp8-e4m3-truncated", activations=2, weights=3)
"""Noise levels at which d in the first steps from `CHAIN_POLICIES` is that of *acrl*."""
EXACT_SUMS = narrow("fp8-e4m3-exact", activations=2, weights=3, rounding="toward_zero")
"""The truncated engine with sums that no order or shape changes: bitwise identical on both sides."""
NEAREST_E4M3 = narrow(NEAREST.inference_engine, 3, 3)
"""E4M3 as it is: three mantissa bits, to nearest."""
