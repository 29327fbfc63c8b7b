"""The regimes in which claims are tested: task, model, number formats, learning rate, initial policies.

`BASE` is a run in plain values (see `simlab.sweeps.config.RunConfig`) without objective, seed, steps and
warm start. `simlab warm-start add tiny-llama --demo-error-rate 0.15 --min-lr-ratio 1 --seed S --out
add-sharp-S.npz` made the files of `WARM_STARTS`.
"""

from dataclasses import replace

from simlab.core.json_value import Json
from simlab.studies.records import Regime

STEPS = 400
RUNS_PER_BATCH = 8
WARM_STARTS = ("add-sharp-0", "add-sharp-2", "add-sharp-3", "add-sharp-5")
TRAINED = {"demo_error_rate": 0.15, "min_lr_ratio": 1.0, "train_size": 4096}
"""Supervised training of initial policies: demonstrations with errors leave much to learn."""
CONTROL = "f32/bf16"
NOISY = ("f32/fp8-s4-truncated", "f32/fp8-e4m3-truncated-all", "f32/fp8-s2-truncated-all")
"""Engine pairs by increasing mismatch."""
BASE: dict[str, Json] = {
    "engines": NOISY[-1],
    "task": "add",
    "model": "tiny-llama",
    "prompts_per_step": 8,
    "group_size": 16,
    "minibatches": 4,
    "optimizer": {"learning_rate": 7e-4, "beta2": 0.999},
    "schedule": {"name": "constant", "lr_warmup_steps": 100},
}

_CHAIN = "chains of 64 terms, 65 tokens"
_WARMUP = f"after {BASE['schedule']['lr_warmup_steps']} steps of warm-up"
_RATE = f"learning rate 7e-4 {_WARMUP}, the largest tested at which most BF16 runs keep their reward"
_STEADY = f"learning rate 4e-4 {_WARMUP}, at which BF16 kept its reward in three trial runs"
_DENSE, _EXPERTS = "dense, 2 layers, width 64", "MoE, 2 layers, width 64, 2 of 8 experts"
CHAINS = Regime(
    "chains, truncation",
    "float32 / FP8 range with 2 (activations) and 3 (weights) mantissa bits, truncated",
    _DENSE,
    _CHAIN,
    _RATE,
    200,
    "chain: no correction",
)
GSPO_CHAINS = replace(CHAINS, name="chains, GSPO, truncation", untreated="chain: GSPO")
NEW_CHAINS = replace(
    CHAINS, name="chains, new policies, truncation", untreated="chain, new policies: no correction"
)
REPEATED_CHAINS = replace(
    NEW_CHAINS,
    name="chains, new policies, three runs each, truncation",
    untreated="chain, new policies, three runs: no correction",
)
NEAREST_CHAINS = replace(
    CHAINS,
    name="chains, 2 and 1 bits to nearest",
    formats="float32 / FP8 range with 2 (activations) and 1 (weights) mantissa bits, round to nearest",
    untreated="chain: 2 and 1 bits",
)
NEAREST_CLIP_5 = replace(NEAREST_CHAINS, name="chains, 2 and 1 bits to nearest, weights up to 5")
NEAREST_BY_DIFFICULTY = replace(NEAREST_CHAINS, name="chains, 2 and 1 bits to nearest, prompts by difficulty")
DAPO_PPO_CHAINS = replace(CHAINS, name="chains, DAPO and PPO, truncation", untreated="chain: DAPO")
FP16_CHAINS = replace(
    CHAINS,
    name="chains, FP16",
    formats="FP16 / FP16; control float32 / BF16",
    untreated="chain: FP16 in both engines",
)
E4M3_CHAINS = replace(
    CHAINS,
    name="chains, E4M3",
    formats="float32 / E4M3 (3 mantissa bits), round to nearest",
    steps=2000,
    untreated="chain: E4M3",
)
STEADY_CHAINS = replace(
    CHAINS,
    name="chains, dense and MoE at 4e-4, truncation",
    model=f"{_DENSE}; {_EXPERTS}",
    learning_rate=_STEADY,
    untreated="chain, MoE at 0.0004: no correction",
)
NOISY_CHAINS = replace(
    STEADY_CHAINS,
    name="chains, dense and MoE at 4e-4, fixed weight noise",
    formats="float32 / float32 with noise on the weights, RMS log rho of 0.25 nats at first",
    untreated="chain, MoE at 0.0004: fixed weight noise",
)
MOE_CHAINS = replace(STEADY_CHAINS, name="chains, MoE at 4e-4, truncation", model=_EXPERTS)
MOE_AT_REST = Regime(
    "chains, MoE at rest",
    "float32 / BF16; E4M3; truncation to 2 and 3 bits; the router alone in E4M3",
    _EXPERTS,
    _CHAIN,
    "learning rate 1e-9, so that the policy does not change",
    10,
    "chain, MoE at rest: BF16",
)
E4M3_MOE_CHAINS = replace(
    E4M3_CHAINS,
    name="chains, MoE at 4e-4, E4M3",
    model=_EXPERTS,
    learning_rate=_STEADY,
    untreated="chain, MoE at 0.0004: E4M3",
)
KINDS_OF_NOISE = replace(
    CHAINS,
    name="chains, noise of four kinds",
    formats="float32 / truncation to 2, 3, 4 bits; rounding to 1, 3 bits; fixed and fresh logit noise",
)
NOISE_AS_LARGE = replace(
    CHAINS,
    name="chains, noise as large as truncation",
    formats="float32 / truncation to 2 and 3 bits; three kinds of logit noise with its RMS log rho",
)
LARGER_NOISE = replace(
    NEW_CHAINS,
    name="chains, noise larger than truncation",
    formats="float32 / truncation to 2 and 3 bits; three kinds of logit noise, 1.5 times its RMS log rho",
)
WEIGHT_NOISE = replace(
    NEW_CHAINS,
    name="chains, fresh and fixed weight noise",
    formats="float32 / truncation to 2 and 3 bits; fixed (1 times) and fresh (1.75 times) weight noise",
)
ONE_BIT_WEIGHTS = replace(
    CHAINS,
    name="chains, weights in one bit",
    formats="float32 / weights with one mantissa bit, round to nearest or stochastic; logit noise",
    untreated="chain: weights in one bit, nearest",
)
ON_POLICY_CHAINS = replace(CHAINS, name="chains, on-policy, truncation", untreated="chain: on-policy")
RLOO_CHAINS = replace(CHAINS, name="chains, on-policy RLOO, truncation", untreated="chain: RLOO")
RLOO_FP16_CHAINS = replace(FP16_CHAINS, name="chains, on-policy RLOO, FP16", untreated="chain: RLOO, FP16")
RECURRENCE = Regime(
    "recurrence, truncation",
    CHAINS.formats,
    _DENSE,
    "recurrence, of 1 to 128 terms as the policy chooses",
    f"learning rate 4e-4 {_WARMUP}, at which BF16 kept its reward in four trial runs",
    200,
    "length: no schedule",
)
CORRECTED_RECURRENCE = replace(
    RECURRENCE, name="recurrence, token MIS and TIS, truncation", untreated="length: token MIS"
)
WIDE_RECURRENCE = replace(
    RECURRENCE,
    name="recurrence, width 96, truncation",
    model="dense, 2 layers, width 96",
    untreated="length, wide: no schedule",
)
_LEARNED = "learning rate 1e-4 after 20 steps of warm-up, at which GSPO learned in a pilot"
TEMPLATE = Regime(
    "template",
    "float32 in both engines",
    _DENSE,
    "addition after a template, 9 tokens",
    _LEARNED,
    200,
    "template: GRPO",
)
SPELLINGS = replace(
    TEMPLATE,
    name="two spellings",
    task="addition in two spellings, 4 tokens",
    untreated="two_spellings: GRPO",
)
GAUSSIAN_NOISE = Regime("exact sums, Gaussian noise", "float32 / Gaussian noise of 0.2 on the logits")
EIGHT_TOKENS = Regime(
    "exact sums, 8 tokens",
    "float32 / Gaussian noise on the logits, std(rho) 0.1",
    "random logits, 3 tokens in the vocabulary",
    "random rewards, 8 tokens",
)
ADDERS = Regime(
    "addition, adders of GPUs",
    "BF16 in both engines, accumulators of an A100 and of an H100",
    "dense, 1 layer, width 32",
    "addition of digits, on-policy",
    "learning rate 7e-4",
    4000,
    "A100 and H100",
)
