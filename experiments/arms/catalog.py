"""Arms of the training experiments by name, with their initial policies.

The key of the result cache is the config of a run, so an arm that several experiments share is computed once.
"""

from dataclasses import replace

from experiments.arms.acrl import ACRL, ACRL_ARMS, KL, MOVING, PENALTIES, SQUARED
from experiments.arms.cancel import CANCEL_ARMS
from experiments.arms.chains import (
    BF16,
    BYPASS,
    CHAIN_ARMS,
    DPPO,
    ICEPOP,
    IDENTICAL,
    IPO,
    KPOP,
    NONE,
    TIS,
)
from experiments.arms.changes import EQUAL, TRUNCATED, objective
from experiments.arms.length import LENGTH_ARMS
from experiments.arms.moe import AT_REST, MOE_MODEL, R3, REST_RATE, REST_STEPS, ROUTER_ARMS
from experiments.arms.names import (
    STEADY_RATE,
    chain_arm,
    moe_arm,
    new_arm,
    repeated_arm,
    rest_arm,
    steady_arm,
)
from experiments.arms.on_policy import RLOO_ARMS
from experiments.policies import CHAIN_POLICIES, MOE_POLICIES, NEW_POLICIES
from experiments.regimes import CONTROL
from simlab.studies.design import Arm


def _on_chains(arm: Arm) -> Arm:
    default = {**objective("grpo"), **TRUNCATED.engines()}
    changes = {**default, **arm.changes, "task": "chain", "prompts_per_step": 4}
    return replace(
        arm, changes=changes, initial_policies=CHAIN_POLICIES, x_from=arm.x_from and chain_arm(arm.x_from)
    )


def _at_steady_rate(arm: Arm) -> Arm:
    dense = _on_chains(arm)
    changes = {"optimizer.learning_rate": STEADY_RATE, **dense.changes}
    return replace(dense, changes=changes, x_from=arm.x_from and steady_arm(arm.x_from))


def _with_moe(arm: Arm) -> Arm:
    steady = _at_steady_rate(arm)
    return replace(
        steady,
        changes={**steady.changes, **MOE_MODEL},
        initial_policies=MOE_POLICIES,
        x_from=arm.x_from and moe_arm(arm.x_from),
    )


ON_CHAINS = CHAIN_ARMS | ACRL_ARMS
ARMS = CANCEL_ARMS | LENGTH_ARMS
ARMS |= {
    chain_arm(name): replace(_on_chains(arm), label=name) for name, arm in (ON_CHAINS | RLOO_ARMS).items()
}
ARMS |= {
    steady_arm(name): replace(_at_steady_rate(ON_CHAINS[name]), label=name) for name in (NONE, BF16, ACRL)
}
ARMS |= {
    rest_arm(name, replays=replays): Arm(
        {
            **_with_moe(CHAIN_ARMS[NONE]).changes,
            "engines": {**engines, "replay": R3 if replays else "none"},
            "optimizer.learning_rate": REST_RATE,
        },
        MOE_POLICIES,
        REST_STEPS,
        label=f"{name}, R3" if replays else name,
    )
    for name, engines in AT_REST.items()
    for replays in (False, True)
}
ARMS |= {
    moe_arm(name): replace(_with_moe(arm), label=name)
    for name, arm in (ON_CHAINS | ROUTER_ARMS).items()
    if "optimizer.learning_rate" not in arm.changes  # a multiple of the rate of the dense arms
}
LEVELS = {level: chain_arm(f"ACRL per {level}") for level in ("sequence", "group", "batch")}
LEVELS["group"] = chain_arm(ACRL)
UNTREATED, CONTROLLED = ARMS[chain_arm(NONE)], ARMS[chain_arm(ACRL)]
ARMS |= {
    LEVELS[level]: replace(
        CONTROLLED, changes={**CONTROLLED.changes, "objective.acrl_level": level}, label=f"ACRL per {level}"
    )
    for level in ("sequence", "batch")
}

FORKS = {
    name: replace(
        UNTREATED, changes={**UNTREATED.changes, **changes}, label=name, forked_from=chain_arm(NONE)
    )
    for name, changes in {
        "fork": {},
        "fork, other data": {},
        "fork, BF16 engines": {"engines": CONTROL},
        "fork, sequence TIS": {"objective": "grpo+seq_tis"},
        "early fork, other data": {},
    }.items()
}
"""Arms that continue runs of another arm, from their middle or, the last one, from their first quarter."""
FORK, FORK_OTHER_DATA, FORK_BF16, FORK_SEQ_TIS, EARLY_FORK = FORKS

ARMS |= {
    new_arm(name): replace(ARMS[chain_arm(name)], initial_policies=NEW_POLICIES)
    for name in (NONE, BF16, TIS, IDENTICAL, BYPASS, ICEPOP, DPPO, IPO, KPOP)
}
REPEATS = (1, 2, 3)
"""Seeds of the arms with three runs from each initial policy; those of `new_arm` have the seed 0."""
ARMS |= {
    repeated_arm(name): replace(ARMS[new_arm(name)], seeds=REPEATS)
    for name in (NONE, BF16, TIS, ICEPOP, IPO, KPOP)
}


def _follow_noise(kind: str, label: str, followed: str, factor: float) -> Arm:
    changes = {**UNTREATED.changes, "engines": EQUAL, "sampling.noise": {"kind": kind, "scale": 1.0}}
    policies = ARMS[followed].initial_policies
    return Arm(changes, policies, label=label, noise_follows=followed, noise_factor=factor)


NOISE_KINDS, LARGER = ("fresh", "recent", "fixed"), 1.5
AS_LARGE = {f"{kind} noise, as large": (kind, 1.0) for kind in NOISE_KINDS}
LARGER_NOISES = {f"{kind} noise, {LARGER:g} times as large": (kind, LARGER) for kind in NOISE_KINDS}
LARGER_WEIGHTS = 1.75
"""With 1.5 the noise was not shown to be a quarter larger than fixed noise (`LOG.md`)."""
WEIGHT_NOISES = {
    f"fresh weight noise, {LARGER_WEIGHTS:g} times as large": ("fresh_weight", LARGER_WEIGHTS),
    "fixed weight noise, as large": ("fixed_weight", 1.0),
}
"""Kind of the noise, and its size over the mismatch that it follows, by label."""
MATCHED = {
    arm(label): _follow_noise(kind, label, arm(NONE), factor)
    for arm, noises in ((chain_arm, AS_LARGE), (new_arm, LARGER_NOISES | WEIGHT_NOISES))
    for label, (kind, factor) in noises.items()
}
"""Arms whose injected noise is at each step as large as the mismatch of another arm, or larger."""
VARIANTS = {
    name: replace(UNTREATED, label=name, own_objective=name)
    for name in (SQUARED, KL, MOVING, *PENALTIES.values())
}
"""Arms whose objectives `experiments.studies.acrl_variants` defines."""
ALL_ARMS = {**ARMS, **FORKS, **MATCHED, **VARIANTS}
