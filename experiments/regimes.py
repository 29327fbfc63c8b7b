"""The regimes in which claims are tested: task, model, number formats, learning rate, initial policies.

`BASE` is a run in plain values (see `simlab.sweeps.config.RunConfig`) without objective, seed, steps and
warm start. `MEASURED` names, for each regime, the stored runs from which `initial_mismatch` reads its
mismatch. `simlab warm-start add tiny-llama --demo-error-rate 0.15 --min-lr-ratio 1 --seed S --out
add-sharp-S.npz` made the files of `WARM_STARTS`.
"""

from typing import Any

from simlab.core.paths import committed_results
from simlab.core.results import Results
from simlab.studies.estimands import Views

STEPS = 400
RUNS_PER_BATCH = 8
WARM_STARTS = ("add-sharp-0", "add-sharp-2", "add-sharp-3", "add-sharp-5")
TRAINED = {"demo_error_rate": 0.15, "min_lr_ratio": 1.0, "train_size": 4096}
"""Supervised training of initial policies: demonstrations with errors leave much to learn."""
SCREENED = (6, 8, 9, 10, 11, 13, 15, 16)
"""Seeds of the initial policies that passed the screen (table `initial_policies` of the flagship)."""
CONTROL = "f32/bf16"
NOISY = ("f32/fp8-s4-truncated", "f32/fp8-e4m3-truncated-all", "f32/fp8-s2-truncated-all")
"""Engine pairs by increasing mismatch."""
BASE: dict[str, Any] = {
    "engines": NOISY[-1],
    "task": "add",
    "model": "tiny-llama",
    "prompts_per_step": 8,
    "group_size": 16,
    "minibatches": 4,
    "optimizer": {"learning_rate": 7e-4, "beta2": 0.999},
    "schedule": {"name": "constant", "lr_warmup_steps": 100},
}

MEASURED: dict[str, tuple[str, str]] = {
    "chains, truncation": ("vexact_dynamics", "chain: no correction"),
    "chains, round to nearest": ("acrl_dynamics", "chain: FP8"),
    "chains, BF16": ("vexact_dynamics", "chain: BF16 control"),
    "chains, MoE, truncation": ("moe_dynamics", "chain, MoE: no correction"),
    "recurrence": ("length_dynamics", "length: no schedule"),
    "template": ("cancel_dynamics", "template: GRPO"),
    "two spellings": ("spelling_dynamics", "two_spellings: GRPO"),
}
"""The experiment and the arm whose stored runs measure a regime; the arm's record describes the regime."""


def initial_mismatch(regime: str) -> float:
    """Return the mean RMS log rho (nats) over the first tenth of the stored runs of a regime."""
    experiment, arm = MEASURED[regime]
    runs = Views(Results(committed_results(experiment))).arms[arm].values()
    return sum(view.early("rms_log_rho") for view in runs) / len(runs)
