# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A first sweep
#
# Reinforcement learning of language models uses two engines: one samples, one computes gradients. Here a
# small policy learns to sort digits. Its training engine computes in float32, its inference engine in FP8.
# The grid has two inference engines, two objectives (with and without an IS correction) and two seeds: eight
# runs in one call.

# %%
import os
import tempfile

import simlab

SMOKE = os.environ.get("SIMLAB_SMOKE") == "1"
OUT = tempfile.mkdtemp() if SMOKE else "runs/first_sweep"

# %% [markdown]
# ## One run in plain values
#
# A run is a set of names from catalogs (`simlab list engines`, `simlab list objectives`, ...) and numbers.
# Every other field has a default. A wrong name or value raises an error before anything is computed.

# %%
base = {
    "task": {"name": "sort", "difficulty": 2 if SMOKE else 3, "train_size": 64, "held_out_size": 16},
    "model": {"name": "tiny-dense", "num_hidden_layers": 1} if SMOKE else "tiny-dense",
    "warm_start": None if SMOKE else {"steps": 150, "demo_error_rate": 0.1},
    "prompts_per_step": 2 if SMOKE else 4,
    "group_size": 2 if SMOKE else 8,
    "minibatches": 1 if SMOKE else 2,
    "steps": 4 if SMOKE else 60,
    "optimizer": {"learning_rate": 5e-4},
}
try:
    simlab.run_config(base | {"engines": "f32/fp8-e4m3", "objective": "grpo+tos"})
except ValueError as error:
    print(error)

# %% [markdown]
# ## The grid, and what it costs
#
# The two objectives share one compiled function. Each engine of the catalog is a constant of its own compiled
# function, so the grid needs two. The planner prints their number, and the expected time, before the sweep
# starts.

# %%
over = {
    "engines": ["f32/fp8-e4m3", "f32/fp8-s4-truncated"],
    "objective": ["grpo", "grpo+tis"],
    "seed": [0, 1],
}
result = simlab.sweep(base, over, OUT, runs_per_batch=2, workers=0 if SMOKE else None)
result

# %% [markdown]
# ## What comes back
#
# `frame()` has one row per run and step, with a column for each config field that varies. `runs()` has one
# row per run.

# %%
frame = result.frame()
frame.groupby(["engines", "objective"])[["reward", "rms_log_rho", "entropy"]].mean()

# %%
result.runs()[["arm", "status", "seed"]]

# %%
result.curves(("reward", "rms_log_rho"), by="arm")

# %% [markdown]
# ## Call it again, with a wider grid
#
# Finished runs are cached by the hash of their config. The same call computes nothing. A wider grid computes
# only the missing runs. The bytes of a run do not depend on the other runs of its batch.

# %%
wider = simlab.sweep(base, over | {"seed": [0, 1, 2]}, OUT, runs_per_batch=2, workers=0 if SMOKE else None)
assert wider.manifest["config"]["computed"] == 4
assert set(result.runs()["run"]) < set(wider.runs()["run"])

# %% [markdown]
# ## How many seeds are enough
#
# Two seeds are a pilot. Their standard deviation gives the number of seeds that detects a difference of 0.05
# in the final reward with power 0.8 at a significance level of 0.05.

# %%
final = frame[frame["step"] >= frame["step"].max() - 9].groupby(["objective", "run"])["reward"].mean()
if not SMOKE:
    print(simlab.seeds_needed(0.05, final["grpo"], final["grpo+tis"], confidence=0.8))
