"""Arms of *acrl* on chains of 64 terms: its correction, PPO, DAPO, and E4M3 rounded to nearest."""

from dataclasses import replace

from experiments.arms.chains import NONE, TWO_BITS
from experiments.arms.changes import NEAREST, NEAREST_E4M3, objective
from experiments.regimes import CONTROL
from simlab.core.json_value import Json
from simlab.studies.design import Arm

TIS5, ACRL = "token TIS at 5", "ACRL 0.35"
PPO, PPO_BF16, PPO_TIS, PPO_ACRL = "PPO", "PPO, BF16 control", "PPO, token TIS at 5", "PPO, ACRL"
DAPO, DAPO_BF16, DAPO_TIS, DAPO_ACRL = "DAPO", "DAPO, BF16 control", "DAPO, token TIS at 5", "DAPO, ACRL"
TWO_BIT_TIS, TWO_BIT_MIS, TWO_BIT_ACRL = (
    "2 and 1 bits, token TIS",
    "2 and 1 bits, token MIS",
    "2 and 1 bits, ACRL",
)
TWO_BIT_TIS_3, TWO_BIT_SEQ_MIS_3 = "2 and 1 bits, token TIS at 3", "2 and 1 bits, sequence MIS at 3"
E4M3, E4M3_BF16 = "E4M3", "E4M3, BF16 control"
E4M3_TIS, E4M3_SEQ_MIS, E4M3_ACRL = "E4M3, token TIS at 3", "E4M3, sequence MIS at 3", "E4M3, ACRL 0.65"
GAMMAS = {gamma: f"ACRL {gamma}" for gamma in (0.1, 0.35, 1.0, 2.1)}
TWO_BIT_GAMMAS = {gamma: f"2 and 1 bits, ACRL {gamma}" for gamma in (0.1, 0.5, 0.65, 0.9, 1.3, 1.7, 2.1, 2.5)}
"""Those of *acrl* Tab. 1 and 9, with the clip of 3 that goes with them."""
TWO_BIT_REFERENCES = {factor: f"2 and 1 bits, ACRL 0.65, {factor} X" for factor in (0.75, 1.25)}
REFERENCES = {0.75: "ACRL, 0.75 X", 1.0: ACRL, 1.25: "ACRL, 1.25 X"}
E4M3_GAMMAS = {gamma: f"E4M3, ACRL {gamma}" for gamma in TWO_BIT_GAMMAS}
E4M3_REFERENCES = {factor: f"{E4M3_ACRL}, {factor} X" for factor in TWO_BIT_REFERENCES}
LONG_STEPS = 2000
SQUARED, KL, MOVING = "ACRL, squared", "ACRL, KL", "ACRL, moving X"
PENALTIES = {size: f"discrepancy penalty {size:g}" for size in (0.3, 1.0, 3.0)}
"""Loss of reward with the mean discrepancy of a batch, by size; a right answer is rewarded 1."""


def _acrl(
    gamma: float,
    factor: float = 1.0,
    x_from: str = NONE,
    base: str = "grpo",
    clip: float = 5.0,
    **changes: Json,
) -> Arm:
    controlled = objective(f"{base}+acrl", acrl_gamma=gamma, acrl_clip=clip)
    return Arm({**controlled, **changes}, x_factor=factor, x_from=x_from)


def _long(maximized: dict[str, Json], **changes: Json) -> Arm:
    return Arm({**maximized, **NEAREST_E4M3.engines(), **changes}, steps=LONG_STEPS)


def _long_acrl(gamma: float, factor: float = 1.0) -> Arm:
    controlled = _long(objective("grpo+acrl", acrl_gamma=gamma, acrl_clip=3.0))
    return replace(controlled, x_factor=factor, x_from=E4M3)


ACRL_ARMS = {
    TIS5: Arm(objective("grpo+tis", correction_clip=5.0)),
    PPO_TIS: Arm({"critic": {}, **objective("ppo+tis", correction_clip=5.0)}),
    DAPO_TIS: Arm(objective("dapo+tis", correction_clip=5.0)),
    **{name: _acrl(gamma) for gamma, name in GAMMAS.items()},
    **{name: _acrl(0.35, factor=factor) for factor, name in REFERENCES.items()},
    PPO: Arm({"critic": {}, **objective("ppo")}),
    PPO_BF16: Arm({"critic": {}, **objective("ppo"), "engines": CONTROL}),
    PPO_ACRL: _acrl(0.35, base="ppo", critic={}),
    DAPO: Arm(objective("dapo")),
    DAPO_BF16: Arm({**objective("dapo"), "engines": CONTROL}),
    DAPO_ACRL: _acrl(0.35, base="dapo"),
    TWO_BIT_TIS: Arm({**objective("grpo+tis"), **NEAREST.engines()}),
    TWO_BIT_MIS: Arm({**objective("grpo+mis"), **NEAREST.engines()}),
    TWO_BIT_ACRL: _acrl(0.65, x_from=TWO_BITS, **NEAREST.engines()),
    TWO_BIT_TIS_3: Arm({**objective("grpo+tis", correction_clip=3.0), **NEAREST.engines()}),
    TWO_BIT_SEQ_MIS_3: Arm({**objective("grpo+seq_mis", correction_clip=3.0), **NEAREST.engines()}),
    **{
        name: _acrl(gamma, x_from=TWO_BITS, clip=3.0, **NEAREST.engines())
        for gamma, name in TWO_BIT_GAMMAS.items()
    },
    **{
        name: _acrl(0.65, factor, x_from=TWO_BITS, clip=3.0, **NEAREST.engines())
        for factor, name in TWO_BIT_REFERENCES.items()
    },
    E4M3: _long(objective("grpo")),
    E4M3_BF16: _long(objective("grpo"), engines=CONTROL),
    E4M3_TIS: _long(objective("grpo+tis", correction_clip=3.0)),
    E4M3_SEQ_MIS: _long(objective("grpo+seq_mis", correction_clip=3.0)),
    **{name: _long_acrl(gamma) for gamma, name in E4M3_GAMMAS.items()},
    **{name: _long_acrl(0.65, factor) for factor, name in E4M3_REFERENCES.items()},
}
