"""The arms behind the claims about dynamics: one list, one store of runs, whichever experiment asks.

A run is known by its content, so an arm that several experiments read is computed once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from experiments.regime import BASE, CONTROL, STEPS
from simlab.training.optimizer import AdamW

PILOT_STEPS = min(STEPS, 200)
WIDTH = 8  # a stage of an arm has eight runs

NONE, BF16 = "no correction", "BF16 control"
TIS, MIS, SEQ_TIS, SEQ_MIS = "token TIS", "token MIS", "sequence TIS", "sequence MIS"
GSPO, NOISE = "GSPO", "GSPO, weight noise"
SLOW, FEW = "rate / 10", "2.5% of the prompts"
EXACT, COPIED, FP16 = "zero mismatch", "copied log-probs", "FP16 twice"
IDENTICAL = "identical engines"
ON_POLICY, ON_POLICY_BF16 = "on-policy", "on-policy, BF16"
FP8, FP8_TIS, FP8_MIS, FP8_ACRL = "FP8", "FP8, token TIS", "FP8, token MIS", "FP8, ACRL"
TIS5, ACRL = "token TIS at 5", "ACRL 0.35"
PPO, PPO_ACRL, DAPO, DAPO_ACRL = "PPO", "PPO, ACRL", "DAPO", "DAPO, ACRL"
HEAD, ICEPOP, CISPO, GSPO_TIS = "fp32 head", "IcePop", "CISPO", "GSPO, token TIS"
ROUTER, R2, R3 = "fp32 router", "R2", "R3"


# The pilot, four runs per arm, had other starts: files 0, 2, 3, 5, and seeds 0 to 3.
_FRESH = range(4, 12)


def _starts(label: str, **how: Any) -> dict[str, dict[str, Any]]:
    return {f"{label} {seed}": {"seed": seed, **how} for seed in _FRESH}


_SHORT: dict[str, Any] = {"steps": 500, "optimizer": {"learning_rate": 8e-3}}
TEMPLATE_STARTS = _starts("template", **_SHORT)
SPELLING_STARTS = _starts("two_spellings", **_SHORT)
RECURRENCE_STARTS = _starts("recurrence", **_SHORT, mistakes=0.02)
LONG_STARTS = {f"chain {seed}": f"chain-{seed}" for seed in (6, 7, 10, 11, 12, 13, 16, 19)}
"""Files in `experiments/warm_starts` that `first_policies` taught and screened."""
EXPERT_STARTS = {
    label: f"chain-moe-{seed}"
    for label, seed in zip(LONG_STARTS, (5, 6, 10, 17, 44, 47, 48, 80), strict=True)
}
"""Those of `first_experts`, each under the label of the dense one that it is compared with."""
CLIP = {"clip_low": 0.03, "clip_high": 0.04}
"""Of a sequence: a hundred times that of the papers, whose responses are a hundred times as long."""
WARMUP = BASE["schedule"]["warmup"]
PERIOD = PILOT_STEPS // 4


@dataclass(frozen=True)
class Arm:
    """What an arm changes in `BASE`, the first policies it starts from by label, and how long it runs.

    `x_factor`: an ACRL arm, whose reference X is this factor times the discrepancy at the first steps of
    `NONE` (or of the arm `x_from`) from the same start and seed.
    """

    changes: Mapping[str, Any] = field(default_factory=dict)
    starts: Mapping[str, Any] = field(default_factory=lambda: LONG_STARTS)
    steps: int = PILOT_STEPS
    x_factor: float | None = None
    x_from: str = NONE


def _objective(name: str, **numbers: Any) -> dict[str, Any]:
    return {"objective": {"name": name, **numbers}}


def _schedule(name: str, **numbers: Any) -> dict[str, Any]:
    return {"schedule": {"name": name, "warmup": WARMUP, **numbers}}


def _acrl(gamma: float, factor: float = 1.0, x_from: str = NONE, base: str = "grpo", **changes: Any) -> Arm:
    objective = _objective(f"{base}+acrl", acrl_gamma=gamma, acrl_clip=5.0)
    return Arm({**objective, **changes}, x_factor=factor, x_from=x_from)


@dataclass(frozen=True)
class Dose:
    """A sampler that errs, beside a trainer in float32: an engine with some of its sites changed."""

    sampler: str
    sites: Mapping[str, Any] = field(default_factory=dict)

    def engines(self, **spared: Any) -> dict[str, Any]:
        """Return the pair, with sites of the sampler that are spared."""
        return {"engines": {"name": f"f32/{self.sampler}", "infer": {**self.sites, **spared}}}

    def exact(self) -> dict[str, Any]:
        """Return the pair whose trainer errs alike."""
        both = {"train": self.sites, "infer": self.sites}
        return {"engines": {"name": f"{self.sampler}/{self.sampler}", **both}}


def _coarser(sampler: str, activations: int, weights: int, **how: str) -> Dose:
    bits = {"activations": activations, "weights": weights}
    sites = {name: {"format": {"mantissa_bits": n}, **how} for name, n in bits.items()}
    return Dose(sampler, {"projection": sites})


NEAREST = _coarser("fp8-e4m3", activations=2, weights=1)
DIRECTED = _coarser("fp8-e4m3-truncated", activations=2, weights=3)
"""Doses with which d at the first steps from `LONG_STARTS` is that of *acrl*: .013 to nearest, .031
truncated. Results stored before 2026-11-23 have other starts, which are lost, and (1, 3) and (2, 2)."""
EXACT_SUMS = _coarser("fp8-e4m3-exact", activations=2, weights=3, rounding="toward_zero")
"""The truncated dose in sums that no order or shape changes: on both sides, equal to the bit."""


RATE = BASE.get("optimizer", {}).get("learning_rate", AdamW().learning_rate)
DELTAS = {0.0: "GSPO, delta 0", 1.2: "GSPO, delta 1.2", 2.0: "GSPO, delta 2", 3.0: "GSPO, delta 3"}
CLIPS = {0.2: NONE, 0.28: "clip 0.28"}
GAMMAS = {gamma: f"ACRL {gamma}" for gamma in (0.1, 0.35, 1.0, 2.1)}
REFERENCES = {0.75: "ACRL, 0.75 X", 1.0: ACRL, 1.25: "ACRL, 1.25 X"}
BITS = {2: NONE, 3: "3 bits, truncated", 4: "4 bits, truncated"}
NEAREST_BITS = {1: FP8, 3: "FP8, 3 bits"}
SCALES = (0.1, 0.3, 1.0)
NOISES = {kind: {scale: f"{kind} noise {scale}" for scale in SCALES} for kind in ("fixed", "fresh")}
EXPERTS: dict[str, Any] = {"model": {"name": "tiny-moe", "qk_norm": False}}
"""The model of the regime with eight experts of a third of its width, of which two compute a token."""

EQUAL = "f32/f32"
CANCEL = {
    "GRPO": "grpo",
    "GRPO-fix": "grpo_fix",
    "GSPO": "gspo",
    "DFPO without transform": "dfpo_none",
    "DFPO min": "dfpo_min",
    "DFPO min, no stop": "dfpo_min_no_stop",
    "GSPO scaled": "dfpo_scale",
}
SPELLED = ("GRPO", "GRPO-fix", "GSPO", "DFPO without transform", "DFPO min")
GROUPS = (2, 4, 8)


def _cancel(starts: Mapping[str, Any], objective: str, group: int = 16) -> Arm:
    task = next(iter(starts)).rpartition(" ")[0]
    clip = {} if objective in ("grpo", "grpo_fix") else CLIP
    changes = {"task": task, "model": "tiny-dense", "engines": EQUAL, "prompts": 4, "group_size": group}
    # The default rate, not that at which mismatch breaks a run.
    changes |= {"optimizer": {}, "schedule": "constant"}
    return Arm({**changes, **_objective(objective, **clip)}, starts)


ARMS = {f"template: {name}": _cancel(TEMPLATE_STARTS, objective) for name, objective in CANCEL.items()}
ARMS |= {f"two_spellings: {name}": _cancel(SPELLING_STARTS, CANCEL[name]) for name in SPELLED}
ARMS |= {
    f"template: {name}, G = {group}": _cancel(TEMPLATE_STARTS, CANCEL[name], group)
    for name in ("GSPO", "DFPO min")
    for group in GROUPS
}

WIDER: dict[str, Any] = {"model": {"name": "tiny-llama", "hidden_size": 96, "intermediate_size": 160}}
LENGTHS = {
    "length: no schedule": {},
    "length: BF16": {"engines": CONTROL},
    "length: triggered": _schedule("length-triggered", rise=1.5, delay=1.8),
    "length: triggered late": _schedule("length-triggered", rise=1.5, delay=4.0),
    "length, wide: no schedule": WIDER,
    "length, wide: triggered": {**WIDER, **_schedule("length-triggered", rise=1.5, delay=1.8)},
    "length, wide: triggered late": {**WIDER, **_schedule("length-triggered", rise=1.5, delay=4.0)},
}
RECURRENCE = {"task": {"name": "recurrence", "difficulty": 16}, **_objective("grpo")}
ARMS |= {name: Arm({**RECURRENCE, **changes}, RECURRENCE_STARTS) for name, changes in LENGTHS.items()}


def long(name: str) -> str:
    """Return the name of an arm over long responses."""
    return f"long: {name}"


def experts(name: str) -> str:
    """Return the name of an arm over long responses whose model has experts."""
    return f"long, MoE: {name}"


def halved(name: str) -> str:
    """Return the name of an arm with the rate halved every quarter of the run."""
    return f"{name}, halving"


def _lengthened(arm: Arm) -> Arm:
    changes = {**DIRECTED.engines(), **arm.changes, "task": "chain", "prompts": 4}
    return replace(arm, changes=changes, starts=LONG_STARTS, x_from=long(arm.x_from))


def _with_experts(arm: Arm) -> Arm:
    whole = _lengthened(arm)
    return replace(
        whole, changes={**whole.changes, **EXPERTS}, starts=EXPERT_STARTS, x_from=experts(arm.x_from)
    )


def _replayed(mode: str) -> dict[str, Any]:
    return {"engines": {**DIRECTED.engines()["engines"], "replay": mode}}


FP32_HEAD = {
    "lm_head": {"activations": "bf16", "weights": "bf16", "output": "fp32"},
    "token_softmax": {"logits": "fp32"},
}
"""Sites of the sampler as MiniMax-M1 has them."""
FP32_ROUTER = {
    "router": {"activations": "bf16", "weights": "bf16", "output": "fp32"},
    "router_weights": "fp32",
}
"""Sites of the sampler as Megatron's `moe_router_dtype=fp32` has them."""
LONG_CLIP = {"clip_low": 0.006, "clip_high": 0.008}
"""Twenty times that of the papers, whose responses are twenty times as long."""
BARE = {
    "minibatches": 1,
    "optimizer.max_grad_norm": 1e9,
    **_objective("grpo", clip_low=1.0, clip_high=1e9),
}
"""On-policy, without stabilisers."""
LONGER = {
    NONE: Arm(_objective("grpo")),
    BF16: Arm({"engines": CONTROL, **_objective("grpo")}),
    TIS: Arm(_objective("grpo+tis", correction_clip=2.0)),
    MIS: Arm(_objective("grpo+mis", correction_clip=2.0)),
    SEQ_TIS: Arm(_objective("grpo+seq_tis", correction_clip=2.0)),
    SEQ_MIS: Arm(_objective("grpo+seq_mis", correction_clip=2.0)),
    ICEPOP: Arm(_objective("grpo+icepop")),
    CISPO: Arm(_objective("cispo")),
    GSPO: Arm(_objective("gspo", **LONG_CLIP)),
    GSPO_TIS: Arm(_objective("gspo+tis", **LONG_CLIP)),
    # hacking
    **{name: Arm(_objective("grpo", clip_high=high)) for high, name in CLIPS.items() if name != NONE},
    NOISE: Arm(_objective("gspo_noise", **LONG_CLIP)),
    **{name: Arm(_objective("gspo_bias", distortion_delta=d, **LONG_CLIP)) for d, name in DELTAS.items()},
    # lr
    SLOW: Arm({"optimizer.learning_rate": RATE / 10, **_objective("grpo")}),
    FEW: Arm({"task.train_size": 102, **_objective("grpo")}),
    **{
        halved(name): Arm({**_schedule("halving", period=PERIOD), **_objective(objective)})
        for name, objective in ((NONE, "grpo"), (TIS, "grpo+tis"), (MIS, "grpo+mis"))
    },
    FP16: Arm({"engines": "fp16/fp16", **_objective("grpo")}),
    HEAD: Arm({**_objective("grpo"), **DIRECTED.engines(**FP32_HEAD)}),
    # vexact
    EXACT: Arm({**_objective("grpo"), **DIRECTED.exact()}),
    IDENTICAL: Arm({**_objective("grpo"), **EXACT_SUMS.exact()}),
    COPIED: Arm({"old_log_probs": "rollout", **_objective("grpo")}),
    ON_POLICY: Arm(BARE),
    ON_POLICY_BF16: Arm({**BARE, "engines": CONTROL}),
    **{
        name: Arm({**_objective("grpo"), **_coarser(DIRECTED.sampler, bits, bits).engines()})
        for bits, name in BITS.items()
        if name != NONE
    },
    NEAREST_BITS[3]: Arm({**_objective("grpo"), **_coarser(NEAREST.sampler, 3, 3).engines()}),
    **{
        name: Arm({**_objective("grpo"), "engines": EQUAL, "sampler.noise": {"kind": kind, "scale": scale}})
        for kind, names in NOISES.items()
        for scale, name in names.items()
    },
    # acrl
    TIS5: Arm(_objective("grpo+tis", correction_clip=5.0)),
    **{name: _acrl(gamma) for gamma, name in GAMMAS.items()},
    **{name: _acrl(0.35, factor=factor) for factor, name in REFERENCES.items()},
    PPO: Arm({"critic": {}, **_objective("ppo")}),
    PPO_ACRL: _acrl(0.35, base="ppo", critic={}),
    DAPO: Arm(_objective("dapo")),
    DAPO_ACRL: _acrl(0.35, base="dapo"),
    FP8: Arm({**_objective("grpo"), **NEAREST.engines()}),
    FP8_TIS: Arm({**_objective("grpo+tis"), **NEAREST.engines()}),
    FP8_MIS: Arm({**_objective("grpo+mis"), **NEAREST.engines()}),
    FP8_ACRL: _acrl(0.65, x_from=FP8, **NEAREST.engines()),
}
ROUTED = {
    ROUTER: Arm({**_objective("grpo"), **DIRECTED.engines(**FP32_ROUTER)}),
    **{mode: Arm({**_objective("grpo"), **_replayed(mode)}) for mode in (R2, R3)},
}
"""What only experts have."""
ARMS |= {long(name): _lengthened(arm) for name, arm in LONGER.items()}
ARMS |= {experts(name): _with_experts(arm) for name, arm in (LONGER | ROUTED).items()}
LEVELS = {"sequence": "long: ACRL per sequence", "group": long(ACRL), "batch": "long: ACRL per batch"}
ARMS |= {
    name: replace(ARMS[long(ACRL)], changes={**ARMS[long(ACRL)].changes, "objective.acrl_level": level})
    for level, name in LEVELS.items()
    if name != long(ACRL)
}
