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
# Reinforcement learning with two engines: one samples, one computes gradients. Here a small policy learns to
# sort digits while its sampler computes in FP8, with and without a correction for the mismatch, and with two
# seeds each. That is a grid of eight runs, one call.

# %%
import os
import tempfile

import simlab

SMOKE = os.environ.get("SIMLAB_SMOKE") == "1"
OUT = tempfile.mkdtemp() if SMOKE else "runs/first_sweep"

# %% [markdown]
# ## One run in plain values
#
# A run is names of catalogs (`simlab list engines`, `simlab list objectives`, ...) and numbers. What is not
# said has a default; what is wrong is an error now, not in an hour.

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
# All engines below have one static signature, and all objectives share one form, so this is a single compiled
# program, mapped over the runs. The planner says so, and how long it will take, before it starts.

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
# One row per run and step, with the columns of the config that vary; and one row per run.

# %%
frame = result.frame()
frame.groupby(["engines", "objective"])[["reward", "std_rho", "entropy"]].mean()

# %%
result.runs()[["arm", "status", "seed"]]

# %%
result.curves(("reward", "std_rho"), by="arm")

# %% [markdown]
# ## Again, and wider
#
# Runs are kept by the hash of their config. The same call computes nothing; a wider one only what is missing,
# and a run's bytes do not depend on which runs it was computed beside.

# %%
wider = simlab.sweep(base, over | {"seed": [0, 1, 2]}, OUT, runs_per_batch=2, workers=0 if SMOKE else None)
assert wider.manifest["config"]["computed"] == 4
assert set(result.runs()["run"]) < set(wider.runs()["run"])

# %% [markdown]
# ## How many seeds would be enough
#
# Two seeds are a pilot. Their spread says how many would show a difference of 0.05 in the final reward with
# probability 0.8, at a false-alarm rate of 0.05.

# %%
final = frame[frame["step"] >= frame["step"].max() - 9].groupby(["objective", "run"])["reward"].mean()
if not SMOKE:
    print(simlab.seeds_needed(0.05, final["grpo"], final["grpo+tis"], confidence=0.8))
