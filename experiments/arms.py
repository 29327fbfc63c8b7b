"""Every arm of the training experiments as a record: what it changes and where its runs start.

The result cache knows a run by its content, so an arm that several experiments read is computed once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from experiments.policies import (
    CHAIN_POLICIES,
    MOE_POLICIES,
    NEW_POLICIES,
    RECURRENCE_POLICIES,
    SPELLING_POLICIES,
    TEMPLATE_POLICIES,
)
from experiments.regimes import BASE, CONTROL
from simlab.studies.design import Arm
from simlab.training.optimizer import AdamW

PILOT_STEPS = Arm().steps
RUNS_PER_BATCH = 8  # a stage of an arm has eight runs

NONE, BF16, TIS5, ACRL = "no correction", "BF16 control", "token TIS at 5", "ACRL 0.35"
TIS, MIS, SEQ_TIS, SEQ_MIS = "token TIS", "token MIS", "sequence TIS", "sequence MIS"
GSPO, NOISE, SLOW, FEW = "GSPO", "GSPO, weight noise", "learning rate / 10", "2.5% of the prompts"
EXACT, IDENTICAL = "zero mismatch", "identical engines"
BYPASS, FP16 = "bypass mode", "FP16 in both engines"
ON_POLICY, ON_POLICY_BF16, ON_POLICY_E4M3 = "on-policy", "on-policy, BF16", "on-policy, E4M3"
FP8, FP8_TIS, FP8_MIS, FP8_ACRL = "FP8", "FP8, token TIS", "FP8, token MIS", "FP8, ACRL"
PPO, PPO_BF16, PPO_TIS, PPO_ACRL = "PPO", "PPO, BF16 control", "PPO, token TIS at 5", "PPO, ACRL"
DAPO, DAPO_BF16, DAPO_TIS, DAPO_ACRL = "DAPO", "DAPO, BF16 control", "DAPO, token TIS at 5", "DAPO, ACRL"
DUAL_CLIP, TOKEN_MEAN, GROUP_FILTER = "dual clip 3", "token mean", "group filter"
HEAD, ICEPOP, CISPO, GSPO_TIS = "fp32 head", "IcePop", "CISPO", "GSPO, token TIS"
DPPO, IPO, KPOP, ROUTER, R2, R3 = "DPPO", "IPO", "KPop", "fp32 router", "R2", "R3"
FP8_TIS_3, FP8_SEQ_MIS_3 = "FP8, token TIS at 3", "FP8, sequence MIS at 3"
E4M3, E4M3_BF16 = "E4M3", "E4M3, BF16 control"
E4M3_TIS, E4M3_SEQ_MIS, E4M3_ACRL = "E4M3, token TIS at 3", "E4M3, sequence MIS at 3", "E4M3, ACRL 0.65"
RLOO, RLOO_BF16, RLOO_FEW, RLOO_FP16 = "RLOO", "RLOO, BF16", "RLOO, 25% of the prompts", "RLOO, FP16"
STEADY_RATE = 4e-4
"""BF16 runs from the MoE policies are stable at this rate, and not at the 7e-4 of the dense arms."""
WARMUP, PERIOD = BASE["schedule"]["lr_warmup_steps"], PILOT_STEPS // 4


def _objective(name: str, **numbers: Any) -> dict[str, Any]:
    return {"objective": {"name": name, **numbers}}


def _schedule(name: str, **numbers: Any) -> dict[str, Any]:
    return {"schedule": {"name": name, "lr_warmup_steps": WARMUP, **numbers}}


def _acrl(
    gamma: float,
    factor: float = 1.0,
    x_from: str = NONE,
    base: str = "grpo",
    clip: float = 5.0,
    **changes: Any,
) -> Arm:
    objective = _objective(f"{base}+acrl", acrl_gamma=gamma, acrl_clip=clip)
    return Arm({**objective, **changes}, x_factor=factor, x_from=x_from)


@dataclass(frozen=True)
class NoisyEngine:
    """An inference engine with some of its sites changed; the training engine computes in float32."""

    inference_engine: str
    sites: Mapping[str, Any] = field(default_factory=dict)

    def engines(self, **spared: Any) -> dict[str, Any]:
        """Return the pair, with other sites of the inference engine changed."""
        return {"engines": {"name": f"f32/{self.inference_engine}", "infer": {**self.sites, **spared}}}

    def exact(self) -> dict[str, Any]:
        """Return the pair whose training engine rounds equally."""
        both = {"train": self.sites, "infer": self.sites}
        return {"engines": {"name": f"{self.inference_engine}/{self.inference_engine}", **both}}


def _narrow(engine: str, activations: int, weights: int, **how: str) -> NoisyEngine:
    bits = {"activations": activations, "weights": weights}
    sites = {name: {"format": {"mantissa_bits": n}, **how} for name, n in bits.items()}
    return NoisyEngine(engine, {"projection": sites})


def _one_bit(rounding: str) -> dict[str, Any]:
    """Return engines whose weights alone differ: one mantissa bit of E4M3, a scale per column."""
    e4m3 = {"name": "e4m3fn", "mantissa_bits": 1}
    weights = {"format": e4m3, "rounding": rounding, "scaling": "per-channel"}
    return {"engines": {"name": EQUAL, "infer": {"projection": {"weights": weights}}}}


NEAREST = _narrow("fp8-e4m3", activations=2, weights=1)
TRUNCATED = _narrow("fp8-e4m3-truncated", activations=2, weights=3)
"""Noise levels at which d in the first steps from `CHAIN_POLICIES` is that of *acrl*."""
EXACT_SUMS = _narrow("fp8-e4m3-exact", activations=2, weights=3, rounding="toward_zero")
"""The truncated engine with sums that no order or shape changes: bitwise identical on both sides."""


RATE = BASE.get("optimizer", {}).get("learning_rate", AdamW().learning_rate)
DELTAS = {0.0: "GSPO, delta 0", 1.2: "GSPO, delta 1.2", 2.0: "GSPO, delta 2", 3.0: "GSPO, delta 3"}
CLIPS = {0.2: NONE, 0.24: "clip 0.24", 0.28: "clip 0.28"}
GAMMAS = {gamma: f"ACRL {gamma}" for gamma in (0.1, 0.35, 1.0, 2.1)}
FP8_GAMMAS = {gamma: f"FP8, ACRL {gamma}" for gamma in (0.1, 0.5, 0.65, 0.9, 1.3, 1.7, 2.1, 2.5)}
"""Those of *acrl* Tab. 1 and 9, with the clip of 3 that goes with them."""
FP8_REFERENCES = {factor: f"FP8, ACRL 0.65, {factor} X" for factor in (0.75, 1.25)}
REFERENCES = {0.75: "ACRL, 0.75 X", 1.0: ACRL, 1.25: "ACRL, 1.25 X"}
E4M3_GAMMAS = {gamma: f"E4M3, ACRL {gamma}" for gamma in FP8_GAMMAS}
E4M3_REFERENCES = {factor: f"{E4M3_ACRL}, {factor} X" for factor in FP8_REFERENCES}
BITS = {2: NONE, 3: "3 bits, truncated", 4: "4 bits, truncated"}
NEAREST_BITS = {1: FP8, 3: "FP8, 3 bits"}
SCALES = (0.1, 0.3, 1.0)
NOISES = {kind: {scale: f"{kind} noise {scale}" for scale in SCALES} for kind in ("fixed", "fresh")}
RECENT = "recent noise 1.0"
"""As large as fresh noise at the scale 1, but a function of the last two tokens."""
ONE_BIT = {"nearest_even": "weights in one bit, nearest", "stochastic": "weights in one bit, stochastic"}
MOE_MODEL: dict[str, Any] = {"model": {"name": "tiny-moe", "qk_norm": False}}
"""The model of the regime with eight experts of a third of its width, of which two compute a token."""

EQUAL = "f32/f32"
CANCEL = {
    "GRPO": _objective("grpo"),
    "GRPO-fix": _objective("grpo_fix"),
    "GSPO": _objective("gspo"),
    "GSPO, wide clip": _objective("gspo", clip_low=0.2, clip_high=0.2),
    "DFPO without transform": _objective("dfpo_none"),
    "DFPO min": _objective("dfpo_min"),
    "DFPO orth": _objective("dfpo_orth"),
    "DFPO min, no stop": _objective("dfpo_min_no_stop"),
    "DFPO, half weights": _objective("dfpo_scale"),
}
SPELLED = ("GRPO", "GRPO-fix", "GSPO", "GSPO, wide clip", "DFPO without transform", "DFPO min", "DFPO orth")
GROUPS = (2, 4, 8)
CANCEL_RATE = 1e-4
"""GSPO learns at it, and at clip ranges of 3e-4 and 4e-4 0.1 to 0.4 of its tokens are clipped."""


def _cancel(task: str, policies: Mapping[str, Any], name: str, group: int = 16) -> Arm:
    changes = {
        "task": task,
        "model": "tiny-dense",
        "engines": EQUAL,
        "prompts_per_step": 4,
        "group_size": group,
    }
    # Four times the rate leaves the ratios of a group as close to one: a standard deviation of 0.02 at most.
    changes |= {"optimizer.learning_rate": CANCEL_RATE, "schedule.lr_warmup_steps": 20}
    label = name if group == 16 else f"{name}, G = {group}"
    return Arm({**changes, **CANCEL[name]}, policies, label=label)


ARMS = {f"template: {name}": _cancel("template", TEMPLATE_POLICIES, name) for name in CANCEL}
ARMS |= {f"two_spellings: {name}": _cancel("two_spellings", SPELLING_POLICIES, name) for name in SPELLED}
ARMS |= {
    f"template: {name}, G = {group}": _cancel("template", TEMPLATE_POLICIES, name, group)
    for name in ("GSPO", "DFPO min")
    for group in GROUPS
}
SURGE = 2.0
"""A surge begins where responses are this many times as long as in the first steps."""
WIDER: dict[str, Any] = {"model": {"name": "tiny-llama", "hidden_size": 96, "intermediate_size": 160}}
PERIODS = {"triggered": 1.8, "triggered late": 250 / 110}
"""Periods over the step of the surge: that of the paper, and the one under which its 4B model collapses."""
LENGTHS = {
    "no schedule": {},
    "BF16": {"engines": CONTROL},
    **{name: _schedule("length-triggered", rise=SURGE, delay=delay) for name, delay in PERIODS.items()},
}
RECURRENCE: dict[str, Any] = {
    "task": {"name": "recurrence", "difficulty": 128},
    "prompts_per_step": 4,
    "optimizer.learning_rate": 4e-4,
    **TRUNCATED.engines(),
    **_objective("grpo"),
}
ARMS |= {
    f"length: {name}": Arm({**RECURRENCE, **changes}, RECURRENCE_POLICIES, label=name)
    for name, changes in LENGTHS.items()
}
ARMS |= {
    f"length, wide: {name}": Arm(
        {**RECURRENCE, **WIDER, **LENGTHS[name]}, RECURRENCE_POLICIES, label=f"wide: {name}"
    )
    for name in ("no schedule", "BF16", *PERIODS)
}


def chain_arm(name: str) -> str:
    """Return the name of an arm on chains of 64 terms."""
    return f"chain: {name}"


def steady_arm(name: str) -> str:
    """Return the name of an arm on chains of 64 terms at the learning rate of the MoE arms."""
    return f"chain at {STEADY_RATE:g}: {name}"


def moe_arm(name: str) -> str:
    """Return the name of an arm on chains of 64 terms whose model is an MoE."""
    return f"chain, MoE at {STEADY_RATE:g}: {name}"


def rest_arm(name: str, *, replays: bool = False) -> str:
    """Return the name of an arm whose MoE policies stay as they are, with routing replay R3 or without."""
    return f"chain, MoE at rest: {name}{', R3' if replays else ''}"


def new_arm(name: str) -> str:
    """Return the name of an arm on chains of 64 terms that starts from `NEW_POLICIES`."""
    return f"chain, new policies: {name}"


def halving_arm(name: str) -> str:
    """Return the name of an arm whose learning rate is halved every quarter of the run."""
    return f"{name}, halving"


def constant_arm(name: str) -> str:
    """Return the name of an arm whose constant learning rate is the mean of that of `halving_arm`."""
    return f"{name}, mean rate"


def rloo_arm(name: str) -> str:
    """Return the name of an arm in the setting of *lr*: on-policy, RLOO, clip 0.2 and 0.28."""
    return f"RLOO, {name}"


def _on_chains(arm: Arm) -> Arm:
    default = {**_objective("grpo"), **TRUNCATED.engines()}
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


def _replay(mode: str) -> dict[str, Any]:
    return {"engines": {**TRUNCATED.engines()["engines"], "replay": mode}}


FP32_HEAD = {
    "lm_head": {"activations": "bf16", "weights": "bf16", "output": "fp32"},
    "token_softmax": {"logits": "fp32"},
}
"""Sites of the inference engine as in MiniMax-M1."""
FP32_ROUTER = {
    "router": {"activations": "bf16", "weights": "bf16", "output": "fp32"},
    "router_weights": "fp32",
}
"""Sites of the inference engine as under Megatron's `moe_router_dtype=fp32`."""
CHAIN_CLIP = {"clip_low": 0.006, "clip_high": 0.008}
"""Twenty times that of the papers, whose responses are twenty times as long."""
NO_STABILIZERS = {
    "minibatches": 1,
    "optimizer.max_grad_norm": 1e9,
    **_objective("grpo", clip_low=1.0, clip_high=1e9),
}
"""On-policy, without stabilizers."""
MEAN_OF_HALVING = sum(0.5**quarter for quarter in range(4)) / 4
LONG_STEPS = 2000
NEAREST_E4M3 = _narrow(NEAREST.inference_engine, 3, 3)
"""E4M3 as it is: three mantissa bits, to nearest."""


def _long(objective: dict[str, Any], **changes: Any) -> Arm:
    return Arm({**objective, **NEAREST_E4M3.engines(), **changes}, steps=LONG_STEPS)


def _long_acrl(gamma: float, factor: float = 1.0) -> Arm:
    controlled = _long(_objective("grpo+acrl", acrl_gamma=gamma, acrl_clip=3.0))
    return replace(controlled, x_factor=factor, x_from=E4M3)


def _rloo(correction: str, /, **changes: Any) -> Arm:
    objective = _objective(f"rloo{correction}", clip_low=0.2, clip_high=0.28)
    return Arm({**objective, "minibatches": 1, **changes})


RLOO_ARMS = {
    RLOO: _rloo(""),
    RLOO_BF16: _rloo("", engines=CONTROL),
    RLOO_FEW: _rloo("", **{"task.train_size": 1024}),
    RLOO_FP16: _rloo("", engines="fp16/fp16"),
    halving_arm(RLOO_FP16): _rloo("", engines="fp16/fp16", **_schedule("halving", period=PERIOD)),
    **{
        rloo_arm(name): _rloo(correction)
        for name, correction in ((TIS, "+tis"), (MIS, "+mis"), (SEQ_TIS, "+seq_tis"), (SEQ_MIS, "+seq_mis"))
    },
    rloo_arm(SLOW): _rloo("", **{"optimizer.learning_rate": RATE / 10}),
    **{
        halving_arm(name): _rloo(correction, **_schedule("halving", period=PERIOD))
        for name, correction in ((RLOO, ""), (rloo_arm(TIS), "+tis"), (rloo_arm(MIS), "+mis"))
    },
    constant_arm(rloo_arm(MIS)): _rloo("+mis", **{"optimizer.learning_rate": RATE * MEAN_OF_HALVING}),
}
"""The setting of *lr*: on-policy, RLOO, clip 0.2 and 0.28."""
CHAIN_ARMS = {
    NONE: Arm(),
    BF16: Arm({"engines": CONTROL}),
    TIS: Arm(_objective("grpo+tis", correction_clip=2.0)),
    MIS: Arm(_objective("grpo+mis", correction_clip=2.0)),
    SEQ_TIS: Arm(_objective("grpo+seq_tis", correction_clip=2.0)),
    SEQ_MIS: Arm(_objective("grpo+seq_mis", correction_clip=2.0)),
    ICEPOP: Arm(_objective("grpo+icepop")),
    CISPO: Arm(_objective("cispo")),
    GSPO: Arm(_objective("gspo", **CHAIN_CLIP)),
    GSPO_TIS: Arm(_objective("gspo+tis", **CHAIN_CLIP)),
    **{name: Arm(_objective(loss)) for name, loss in ((DPPO, "dppo_tv"), (IPO, "ipo"), (KPOP, "kpop"))},
    # hacking
    **{name: Arm(_objective("grpo", clip_high=high)) for high, name in CLIPS.items() if name != NONE},
    NOISE: Arm(_objective("gspo_noise", **CHAIN_CLIP)),
    **{name: Arm(_objective("gspo_bias", distortion_delta=d, **CHAIN_CLIP)) for d, name in DELTAS.items()},
    # DAPO's changes to GRPO, besides the clip of 0.28
    DUAL_CLIP: Arm(_objective("grpo", dual_clip=3.0)),
    TOKEN_MEAN: Arm(_objective("grpo", aggregation="token-mean")),
    GROUP_FILTER: Arm(_objective("grpo", group_filter=True)),
    # lr
    SLOW: Arm({"optimizer.learning_rate": RATE / 10}),
    FEW: Arm({"task.train_size": 102}),
    **{
        halving_arm(name): Arm({**_schedule("halving", period=PERIOD), **_objective(objective)})
        for name, objective in ((NONE, "grpo"), (TIS, "grpo+tis"), (MIS, "grpo+mis"))
    },
    **{
        constant_arm(name): Arm({"optimizer.learning_rate": RATE * MEAN_OF_HALVING, **_objective(objective)})
        for name, objective in ((NONE, "grpo"), (TIS, "grpo+tis"), (MIS, "grpo+mis"))
    },
    FP16: Arm({"engines": "fp16/fp16"}),
    halving_arm(FP16): Arm({"engines": "fp16/fp16", **_schedule("halving", period=PERIOD)}),
    HEAD: Arm(TRUNCATED.engines(**FP32_HEAD)),
    # vexact
    EXACT: Arm(TRUNCATED.exact()),
    IDENTICAL: Arm(EXACT_SUMS.exact()),
    BYPASS: Arm({"old_log_probs": "rollout"}),
    ON_POLICY: Arm(NO_STABILIZERS),
    ON_POLICY_BF16: Arm({**NO_STABILIZERS, "engines": CONTROL}),
    ON_POLICY_E4M3: Arm({**NO_STABILIZERS, **NEAREST_E4M3.engines()}),
    **{
        name: Arm(_narrow(TRUNCATED.inference_engine, bits, bits).engines())
        for bits, name in BITS.items()
        if name != NONE
    },
    NEAREST_BITS[3]: Arm(NEAREST_E4M3.engines()),
    **{
        name: Arm({"engines": EQUAL, "sampling.noise": {"kind": kind, "scale": scale}})
        for kind, names in NOISES.items()
        for scale, name in names.items()
    },
    RECENT: Arm({"engines": EQUAL, "sampling.noise": {"kind": "recent", "scale": 1.0}}),
    **{name: Arm(_one_bit(rounding)) for rounding, name in ONE_BIT.items()},
    # acrl
    TIS5: Arm(_objective("grpo+tis", correction_clip=5.0)),
    PPO_TIS: Arm({"critic": {}, **_objective("ppo+tis", correction_clip=5.0)}),
    DAPO_TIS: Arm(_objective("dapo+tis", correction_clip=5.0)),
    **{name: _acrl(gamma) for gamma, name in GAMMAS.items()},
    **{name: _acrl(0.35, factor=factor) for factor, name in REFERENCES.items()},
    PPO: Arm({"critic": {}, **_objective("ppo")}),
    PPO_BF16: Arm({"critic": {}, **_objective("ppo"), "engines": CONTROL}),
    PPO_ACRL: _acrl(0.35, base="ppo", critic={}),
    DAPO: Arm(_objective("dapo")),
    DAPO_BF16: Arm({**_objective("dapo"), "engines": CONTROL}),
    DAPO_ACRL: _acrl(0.35, base="dapo"),
    FP8: Arm(NEAREST.engines()),
    FP8_TIS: Arm({**_objective("grpo+tis"), **NEAREST.engines()}),
    FP8_MIS: Arm({**_objective("grpo+mis"), **NEAREST.engines()}),
    FP8_ACRL: _acrl(0.65, x_from=FP8, **NEAREST.engines()),
    FP8_TIS_3: Arm({**_objective("grpo+tis", correction_clip=3.0), **NEAREST.engines()}),
    FP8_SEQ_MIS_3: Arm({**_objective("grpo+seq_mis", correction_clip=3.0), **NEAREST.engines()}),
    **{name: _acrl(gamma, x_from=FP8, clip=3.0, **NEAREST.engines()) for gamma, name in FP8_GAMMAS.items()},
    **{
        name: _acrl(0.65, factor, x_from=FP8, clip=3.0, **NEAREST.engines())
        for factor, name in FP8_REFERENCES.items()
    },
    E4M3: _long(_objective("grpo")),
    E4M3_BF16: _long(_objective("grpo"), engines=CONTROL),
    E4M3_TIS: _long(_objective("grpo+tis", correction_clip=3.0)),
    E4M3_SEQ_MIS: _long(_objective("grpo+seq_mis", correction_clip=3.0)),
    **{name: _long_acrl(gamma) for gamma, name in E4M3_GAMMAS.items()},
    **{name: _long_acrl(0.65, factor) for factor, name in E4M3_REFERENCES.items()},
}
"""Their objective is GRPO where they name no other."""
ROUTER_ARMS = {
    ROUTER: Arm(TRUNCATED.engines(**FP32_ROUTER)),
    **{mode: Arm(_replay(mode)) for mode in (R2, R3)},
}
"""Arms of an MoE alone."""
ARMS |= {
    chain_arm(name): replace(_on_chains(arm), label=name) for name, arm in (CHAIN_ARMS | RLOO_ARMS).items()
}
ARMS |= {
    steady_arm(name): replace(_at_steady_rate(CHAIN_ARMS[name]), label=name) for name in (NONE, BF16, ACRL)
}
AT_REST = {
    "BF16": {"name": CONTROL},
    "E4M3": NEAREST_E4M3.engines()["engines"],
    "truncation": TRUNCATED.engines()["engines"],
    "router in E4M3": {"name": EQUAL, "infer": {"router": {"activations": "e4m3fn", "weights": "e4m3fn"}}},
}
"""Engines for MoE policies that do not learn, so that two arms score the same responses."""
REST_STEPS, REST_RATE = 10, 1e-9
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
    for name, arm in (CHAIN_ARMS | ROUTER_ARMS).items()
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


def _following(kind: str, label: str, followed: str, factor: float) -> Arm:
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
    arm(label): _following(kind, label, arm(NONE), factor)
    for arm, noises in ((chain_arm, AS_LARGE), (new_arm, LARGER_NOISES | WEIGHT_NOISES))
    for label, (kind, factor) in noises.items()
}
"""Arms whose injected noise is at each step as large as the mismatch of another arm, or larger."""

SQUARED, KL, MOVING = "ACRL, squared", "ACRL, KL", "ACRL, moving X"
PENALTIES = {size: f"discrepancy penalty {size:g}" for size in (0.3, 1.0, 3.0)}
"""Loss of reward with the mean discrepancy of a batch, by size; a right answer is rewarded 1."""
VARIANTS = {
    name: replace(UNTREATED, label=name, own_objective=name)
    for name in (SQUARED, KL, MOVING, *PENALTIES.values())
}
"""Arms whose objectives `experiments.studies.acrl_variants` defines."""
ALL_ARMS = {**ARMS, **FORKS, **MATCHED, **VARIANTS}
