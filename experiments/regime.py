"""The regime of the flagship, for every experiment that asks about rise and decline under mismatch.

`BASE` is a run in plain values (see `simlab.sweeps.config.RunConfig`) without objective, seed, steps and
warm start; the engine pairs are ordered from the weakest dose to the strongest. Warm starts are made by
`simlab warm-start add tiny-llama --mistakes 0.15 --final 1 --seed S --out add-sharp-S.npz`.
"""

from typing import Any

STEPS = 400
WIDTH = 8
WARM_STARTS = ("add-sharp-0", "add-sharp-2", "add-sharp-3", "add-sharp-5")
TAUGHT = {"mistakes": 0.15, "final": 1.0, "train_size": 4096}
"""How first policies are taught: to make mistakes, so that there is much to sharpen."""
SCREENED = (6, 8, 9, 10, 11, 13, 15, 16)
"""Seeds of the first policies that passed the flagship's screen (table `starts` of its results)."""
CONTROL = "f32/bf16"
DOSES = ("f32/fp8-s4-truncated", "f32/fp8-e4m3-truncated-all", "f32/fp8-s2-truncated-all")
BASE: dict[str, Any] = {
    "engines": DOSES[-1],
    "task": "add",
    "model": "tiny-llama",
    "prompts": 8,
    "group_size": 16,
    "minibatches": 4,
    "optimizer": {"learning_rate": 7e-4, "beta2": 0.999},
    "schedule": {"name": "constant", "warmup": 100},
}
