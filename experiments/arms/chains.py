"""Treatments of arms on chains of 64 terms, with GRPO unless they set another objective.

`experiments.arms.settings` places them. They serve *hacking*, *lr* and *vexact*; *acrl* adds its own.
"""

from experiments.arms.changes import (
    EQUAL,
    EXACT_SUMS,
    NEAREST,
    NEAREST_E4M3,
    RATE,
    TRUNCATED,
    narrow,
    objective,
    one_bit,
)
from experiments.regimes import CONTROL
from simlab.studies.arms import Arm

CHAIN_CLIP = {"clip_low": 0.006, "clip_high": 0.008}
"""Twenty times that of the papers, whose responses are twenty times as long."""
NO_STABILIZERS = {
    "minibatches": 1,
    "optimizer.max_grad_norm": 1e9,
    **objective("grpo", clip_low=1.0, clip_high=1e9),
}
"""On-policy, without stabilizers."""

NONE = Arm("no correction")
BF16 = Arm("BF16 control", {"engines": CONTROL})
FP16 = Arm("FP16 in both engines", {"engines": "fp16/fp16"})

# Corrections and losses.
TIS = Arm("token TIS", objective("grpo+tis", correction_clip=2.0))
MIS = Arm("token MIS", objective("grpo+mis", correction_clip=2.0))
SEQ_TIS = Arm("sequence TIS", objective("grpo+seq_tis", correction_clip=2.0))
SEQ_MIS = Arm("sequence MIS", objective("grpo+seq_mis", correction_clip=2.0))
ICEPOP = Arm("IcePop", objective("grpo+icepop"))
BYPASS = Arm("bypass mode", {"old_log_probs": "rollout"})
GSPO = Arm("GSPO", objective("gspo", **CHAIN_CLIP))
DPPO = Arm("DPPO", objective("dppo_tv"))
IPO = Arm("IPO", objective("ipo"))
KPOP = Arm("KPop", objective("kpop"))

# hacking
CLIPS = {
    0.2: NONE,
    **{high: Arm(f"clip {high}", objective("grpo", clip_high=high)) for high in (0.24, 0.28)},
}
NOISE = Arm("GSPO, weight noise", objective("gspo_noise", **CHAIN_CLIP))
DELTAS = {
    delta: Arm(f"GSPO, delta {delta:g}", objective("gspo_bias", distortion_delta=delta, **CHAIN_CLIP))
    for delta in (0.0, 1.2, 2.0, 3.0)
}
RAREST_UNWEIGHTED = Arm(
    "GSPO, delta 0 below 0.003",
    objective("gspo_bias", distortion_delta=0.0, distortion_threshold=0.003, **CHAIN_CLIP),
)
"""The other arms with a delta weight tokens below 0.1, without which a run learns nothing."""

# DAPO's changes to GRPO, besides the clip of 0.28.
DUAL_CLIP = Arm("dual clip 3", objective("grpo", dual_clip=3.0))
TOKEN_MEAN = Arm("token mean", objective("grpo", aggregation="token-mean"))
GROUP_FILTER = Arm("group filter", objective("grpo", group_filter=True))

# lr
SLOW = Arm("learning rate / 10", {"optimizer.learning_rate": RATE / 10})
FEW = Arm("2.5% of the prompts", {"task.train_size": 102})

# vexact
EXACT = Arm("zero mismatch", TRUNCATED.exact())
IDENTICAL = Arm("identical engines", EXACT_SUMS.exact())
ON_POLICY = Arm("on-policy", NO_STABILIZERS)
ON_POLICY_BF16 = Arm("on-policy, BF16", {**NO_STABILIZERS, "engines": CONTROL})
ON_POLICY_E4M3 = Arm("on-policy, E4M3", {**NO_STABILIZERS, **NEAREST_E4M3.engines()})
TWO_BITS = Arm("2 and 1 bits", NEAREST.engines())
THREE_BITS = Arm("FP8, 3 bits", NEAREST_E4M3.engines())
NEAREST_BITS = {1: TWO_BITS, 3: THREE_BITS}
BITS = {
    2: NONE,
    **{
        bits: Arm(f"{bits} bits, truncated", narrow(TRUNCATED.inference_engine, bits, bits).engines())
        for bits in (3, 4)
    },
}


def logit_noise(kind: str, scale: float) -> Arm:
    """Return equal engines with noise on the logits of the inference engine, `scale` nats large."""
    return Arm(f"{kind} noise {scale}", {"engines": EQUAL, "sampling.noise": {"kind": kind, "scale": scale}})


FIXED_NOISES, FRESH_NOISES = (
    {scale: logit_noise(kind, scale) for scale in (0.1, 0.3, 1.0)} for kind in ("fixed", "fresh")
)
RECENT_NOISE = logit_noise("recent", 1.0)
"""As large as fresh noise at the scale 1, but a function of the last two tokens."""
ONE_BIT = Arm("weights in one bit, nearest", one_bit("nearest_even"))
ONE_BIT_STOCHASTIC = Arm("weights in one bit, stochastic", one_bit("stochastic"))
