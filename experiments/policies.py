"""The initial policies of the training experiments: files, or supervised trainings by seed.

Runs of different arms with the same label start from the same policy.
"""

from collections.abc import Iterable

from simlab.core.json_value import Json

CHAIN_TRAINING: dict[str, Json] = {
    "steps": 4000,
    "batch": 16,
    "demo_error_rate": 0.02,
    "lr_warmup_steps": 2000,
    "optimizer": {"learning_rate": 8e-3},
}
"""Policies trained at a quarter of this rate are sharper, and their runs collapse without any mismatch
(`LOG.md`)."""
MOE_TRAINING: dict[str, Json] = {
    **CHAIN_TRAINING,
    "lr_warmup_steps": 1000,
    "optimizer": {"learning_rate": 4e-3},
}
"""At the rate of the dense models one MoE seed in ten learns the task; chosen by trial seeds (`LOG.md`)."""


# Pilots had other initial policies, of the seeds 0 to 3.
def _train_policies(task: str, seeds: Iterable[int], **training: Json) -> dict[str, dict[str, Json]]:
    return {f"{task} {seed}": {"seed": seed, **training} for seed in seeds}


CANCEL_SEEDS = range(28, 52)
# The seeds 4 to 27 were those of an edition whose rule changed after the run.
RECURRENCE_POLICIES = _train_policies("recurrence", CANCEL_SEEDS, steps=1500, batch=32, demo_error_rate=0.02)
WRONG_DIGITS: dict[str, Json] = {"steps": 1500, "demo_error_rate": 0.3}
"""Enough updates to learn addition, from demonstrations that leave much to gain."""
TEMPLATE_POLICIES = _train_policies("template", CANCEL_SEEDS, **WRONG_DIGITS)
SPELLING_POLICIES = _train_policies("two_spellings", CANCEL_SEEDS, **WRONG_DIGITS)
CHAIN_SEEDS = (
    *(100, 101, 103, 104, 106, 107, 108, 109, 110, 111, 112, 113),
    *(114, 116, 117, 118, 119, 123, 124, 125, 126, 127, 129, 132),
)
CHAIN_POLICIES = {f"chain {seed}": f"chain-{seed}" for seed in CHAIN_SEEDS}
"""Files in `experiments/warm_starts` that `initial_policies` trained and screened."""
NEW_SEEDS = (
    *(136, 137, 138, 139, 140, 141, 142, 146, 149, 150, 153, 154),
    *(155, 156, 159, 161, 162, 165, 167, 169, 170, 171, 173, 175),
)
NEW_POLICIES = _train_policies("chain", NEW_SEEDS, **CHAIN_TRAINING)
"""Further policies that pass the screen of `CHAIN_POLICIES`, by `new_policies`. They are trained when an
experiment needs them, to limit the size of the package."""
MOE_SEEDS = (
    *(102, 104, 105, 106, 107, 108, 112, 113, 114, 115, 117, 118),
    *(120, 121, 122, 123, 125, 126, 128, 129, 131, 133, 134, 135),
)
MOE_POLICIES = {label: f"chain-moe-{seed}" for label, seed in zip(CHAIN_POLICIES, MOE_SEEDS, strict=True)}
"""Files of `initial_moe_policies`, each under the label of its dense pair."""
