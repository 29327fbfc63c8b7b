"""Arms on chains of 64 terms, with GRPO unless they set another objective: *hacking*, *lr*, *vexact*."""

from experiments.arms.changes import (
    EQUAL,
    EXACT_SUMS,
    FP32_HEAD,
    NEAREST,
    NEAREST_E4M3,
    PERIOD,
    TRUNCATED,
    mean_of_halving,
    narrow,
    objective,
    one_bit,
    schedule,
)
from experiments.arms.names import constant_arm, halving_arm
from experiments.regimes import BASE, CONTROL
from simlab.studies.design import Arm
from simlab.training.optimizer import AdamW

NONE, BF16 = "no correction", "BF16 control"
TIS, MIS, SEQ_TIS, SEQ_MIS = "token TIS", "token MIS", "sequence TIS", "sequence MIS"
GSPO, NOISE, SLOW, FEW = "GSPO", "GSPO, weight noise", "learning rate / 10", "2.5% of the prompts"
EXACT, IDENTICAL = "zero mismatch", "identical engines"
BYPASS, FP16 = "bypass mode", "FP16 in both engines"
ON_POLICY, ON_POLICY_BF16, ON_POLICY_E4M3 = "on-policy", "on-policy, BF16", "on-policy, E4M3"
DUAL_CLIP, TOKEN_MEAN, GROUP_FILTER = "dual clip 3", "token mean", "group filter"
HEAD, ICEPOP, CISPO, GSPO_TIS = "fp32 head", "IcePop", "CISPO", "GSPO, token TIS"
DPPO, IPO, KPOP, TWO_BITS = "DPPO", "IPO", "KPop", "2 and 1 bits"
RATE = BASE.get("optimizer", {}).get("learning_rate", AdamW().learning_rate)
DELTAS = {0.0: "GSPO, delta 0", 1.2: "GSPO, delta 1.2", 2.0: "GSPO, delta 2", 3.0: "GSPO, delta 3"}
CLIPS = {0.2: NONE, 0.24: "clip 0.24", 0.28: "clip 0.28"}
BITS = {2: NONE, 3: "3 bits, truncated", 4: "4 bits, truncated"}
NEAREST_BITS = {1: TWO_BITS, 3: "FP8, 3 bits"}
SCALES = (0.1, 0.3, 1.0)
NOISES = {kind: {scale: f"{kind} noise {scale}" for scale in SCALES} for kind in ("fixed", "fresh")}
RECENT = "recent noise 1.0"
"""As large as fresh noise at the scale 1, but a function of the last two tokens."""
ONE_BIT = {"nearest_even": "weights in one bit, nearest", "stochastic": "weights in one bit, stochastic"}
CHAIN_CLIP = {"clip_low": 0.006, "clip_high": 0.008}
"""Twenty times that of the papers, whose responses are twenty times as long."""
NO_STABILIZERS = {
    "minibatches": 1,
    "optimizer.max_grad_norm": 1e9,
    **objective("grpo", clip_low=1.0, clip_high=1e9),
}
"""On-policy, without stabilizers."""
MEAN_RATE = RATE * mean_of_halving()
"""The mean learning rate of `halving_arm` is that of a constant rate of this size, after the same warm-up."""
CHAIN_ARMS = {
    NONE: Arm(),
    BF16: Arm({"engines": CONTROL}),
    TIS: Arm(objective("grpo+tis", correction_clip=2.0)),
    MIS: Arm(objective("grpo+mis", correction_clip=2.0)),
    SEQ_TIS: Arm(objective("grpo+seq_tis", correction_clip=2.0)),
    SEQ_MIS: Arm(objective("grpo+seq_mis", correction_clip=2.0)),
    ICEPOP: Arm(objective("grpo+icepop")),
    CISPO: Arm(objective("cispo")),
    GSPO: Arm(objective("gspo", **CHAIN_CLIP)),
    GSPO_TIS: Arm(objective("gspo+tis", **CHAIN_CLIP)),
    **{name: Arm(objective(loss)) for name, loss in ((DPPO, "dppo_tv"), (IPO, "ipo"), (KPOP, "kpop"))},
    # hacking
    **{name: Arm(objective("grpo", clip_high=high)) for high, name in CLIPS.items() if name != NONE},
    NOISE: Arm(objective("gspo_noise", **CHAIN_CLIP)),
    **{name: Arm(objective("gspo_bias", distortion_delta=d, **CHAIN_CLIP)) for d, name in DELTAS.items()},
    # DAPO's changes to GRPO, besides the clip of 0.28
    DUAL_CLIP: Arm(objective("grpo", dual_clip=3.0)),
    TOKEN_MEAN: Arm(objective("grpo", aggregation="token-mean")),
    GROUP_FILTER: Arm(objective("grpo", group_filter=True)),
    # lr
    SLOW: Arm({"optimizer.learning_rate": RATE / 10}),
    FEW: Arm({"task.train_size": 102}),
    **{
        halving_arm(name): Arm({**schedule("halving", period=PERIOD), **objective(loss)})
        for name, loss in ((NONE, "grpo"), (TIS, "grpo+tis"), (MIS, "grpo+mis"))
    },
    constant_arm(MIS): Arm({"optimizer.learning_rate": MEAN_RATE, **objective("grpo+mis")}),
    FP16: Arm({"engines": "fp16/fp16"}),
    halving_arm(FP16): Arm({"engines": "fp16/fp16", **schedule("halving", period=PERIOD)}),
    HEAD: Arm(TRUNCATED.engines(**FP32_HEAD)),
    # vexact
    EXACT: Arm(TRUNCATED.exact()),
    IDENTICAL: Arm(EXACT_SUMS.exact()),
    BYPASS: Arm({"old_log_probs": "rollout"}),
    ON_POLICY: Arm(NO_STABILIZERS),
    ON_POLICY_BF16: Arm({**NO_STABILIZERS, "engines": CONTROL}),
    ON_POLICY_E4M3: Arm({**NO_STABILIZERS, **NEAREST_E4M3.engines()}),
    **{
        name: Arm(narrow(TRUNCATED.inference_engine, bits, bits).engines())
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
    **{name: Arm(one_bit(rounding)) for rounding, name in ONE_BIT.items()},
    # acrl, which adds arms of its own
    TWO_BITS: Arm(NEAREST.engines()),
}
