"""Treatments of *acrl* on chains of 64 terms: its correction, PPO, DAPO, and E4M3 rounded to nearest."""

from dataclasses import replace

from experiments.arms.chains import NONE, TWO_BITS
from experiments.arms.changes import NEAREST, NEAREST_E4M3, objective
from experiments.arms.settings import on_chains
from experiments.regimes import CONTROL
from simlab.core.json_value import Json
from simlab.studies.arms import Arm

LONG_STEPS = 2000


def _acrl(
    name: str,
    gamma: float,
    factor: float = 1.0,
    x_from: Arm = NONE,
    base: str = "grpo",
    clip: float = 5.0,
    **changes: Json,
) -> Arm:
    controlled = objective(f"{base}+acrl", acrl_gamma=gamma, acrl_clip=clip)
    return Arm(name, {**controlled, **changes}, x_factor=factor, x_from=x_from)


TIS5 = Arm("token TIS at 5", objective("grpo+tis", correction_clip=5.0))
GAMMAS = {gamma: _acrl(f"ACRL {gamma}", gamma) for gamma in (0.1, 0.35, 1.0, 2.1)}
ACRL = GAMMAS[0.35]
LOW_X, HIGH_X = (_acrl(f"ACRL, {factor} X", 0.35, factor) for factor in (0.75, 1.25))

# Tab. 4.
PPO = Arm("PPO", {"critic": {}, **objective("ppo")})
PPO_BF16 = Arm("PPO, BF16 control", {"critic": {}, **objective("ppo"), "engines": CONTROL})
PPO_TIS = Arm("PPO, token TIS at 5", {"critic": {}, **objective("ppo+tis", correction_clip=5.0)})
PPO_ACRL = _acrl("PPO, ACRL", 0.35, base="ppo", critic={})
DAPO = Arm("DAPO", objective("dapo"))
DAPO_BF16 = Arm("DAPO, BF16 control", {**objective("dapo"), "engines": CONTROL})
DAPO_TIS = Arm("DAPO, token TIS at 5", objective("dapo+tis", correction_clip=5.0))
DAPO_ACRL = _acrl("DAPO, ACRL", 0.35, base="dapo")


# Two bits of activations and one of weights, rounded to nearest.
def _two_bits(name: str, loss: str, **numbers: Json) -> Arm:
    return Arm(f"2 and 1 bits, {name}", {**objective(loss, **numbers), **NEAREST.engines()})


def _two_bit_acrl(name: str, gamma: float, factor: float = 1.0, clip: float = 3.0) -> Arm:
    return _acrl(f"2 and 1 bits, {name}", gamma, factor, TWO_BITS, clip=clip, **NEAREST.engines())


PRINTED_GAMMAS = (0.1, 0.5, 0.65, 0.9, 1.3, 1.7, 2.1, 2.5)
"""Those of *acrl* Tab. 1 and 9, with the clip of 3 that goes with them."""
TWO_BIT_TIS = _two_bits("token TIS", "grpo+tis")
TWO_BIT_MIS = _two_bits("token MIS", "grpo+mis")
TWO_BIT_ACRL = _two_bit_acrl("ACRL", 0.65, clip=5.0)
TWO_BIT_TIS_3 = _two_bits("token TIS at 3", "grpo+tis", correction_clip=3.0)
TWO_BIT_SEQ_MIS_3 = _two_bits("sequence MIS at 3", "grpo+seq_mis", correction_clip=3.0)
TWO_BIT_GAMMAS = {gamma: _two_bit_acrl(f"ACRL {gamma}", gamma) for gamma in PRINTED_GAMMAS}
TWO_BIT_LOW_X, TWO_BIT_HIGH_X = (
    _two_bit_acrl(f"ACRL 0.65, {factor} X", 0.65, factor) for factor in (0.75, 1.25)
)


# E4M3 as it is, over 2000 steps.
def _e4m3(name: str, maximized: dict[str, Json], **changes: Json) -> Arm:
    return Arm(name, {**maximized, **NEAREST_E4M3.engines(), **changes}, steps=LONG_STEPS)


def _e4m3_acrl(name: str, gamma: float, factor: float = 1.0) -> Arm:
    controlled = _e4m3(f"E4M3, {name}", objective("grpo+acrl", acrl_gamma=gamma, acrl_clip=3.0))
    return replace(controlled, x_factor=factor, x_from=E4M3)


E4M3 = _e4m3("E4M3", objective("grpo"))
E4M3_BF16 = _e4m3("E4M3, BF16 control", objective("grpo"), engines=CONTROL)
E4M3_TIS = _e4m3("E4M3, token TIS at 3", objective("grpo+tis", correction_clip=3.0))
E4M3_SEQ_MIS = _e4m3("E4M3, sequence MIS at 3", objective("grpo+seq_mis", correction_clip=3.0))
E4M3_GAMMAS = {gamma: _e4m3_acrl(f"ACRL {gamma}", gamma) for gamma in PRINTED_GAMMAS}
E4M3_ACRL = E4M3_GAMMAS[0.65]
E4M3_LOW_X, E4M3_HIGH_X = (_e4m3_acrl(f"ACRL 0.65, {factor} X", 0.65, factor) for factor in (0.75, 1.25))

# Y per sequence and per batch.
PER_SEQUENCE, PER_BATCH = (
    replace(ACRL, id=f"ACRL per {level}", changes={**ACRL.changes, "objective.acrl_level": level})
    for level in ("sequence", "batch")
)


# Objectives that `experiments.studies.acrl_variants` defines.
def _own(name: str) -> Arm:
    return replace(on_chains(NONE), id=name, label=name, own_objective=name)


SQUARED, KL, MOVING = map(_own, ("ACRL, squared", "ACRL, KL", "ACRL, moving X"))
PENALTIES = {size: _own(f"discrepancy penalty {size:g}") for size in (0.3, 1.0, 3.0)}
"""Loss of reward with the mean discrepancy of a batch, by size; a right answer is rewarded 1."""
