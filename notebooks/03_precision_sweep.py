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
# # Precision as an axis
#
# A number format is a record of numbers: mantissa bits, smallest exponent, largest value. So precision is
# swept like a learning rate, without a new program for each format. Here the sampler rounds the residual
# stream to ever fewer mantissa bits, in two ways of rounding, and we look at the mismatch that this makes.

# %%
import os
import tempfile

import matplotlib.pyplot as plt
import numpy as np

import simlab

SMOKE = os.environ.get("SIMLAB_SMOKE") == "1"
OUT = tempfile.mkdtemp() if SMOKE else "runs/precision_sweep"

# %% [markdown]
# ## Any number of any site
#
# `engines` names a pair, train/infer, and a dotted name reaches into it. The site `infer.residual` gets a
# format by name, and then a mantissa of its own. The policy is frozen (learning rate 0): only the engines
# differ, and the mean over steps is over fresh prompts of one policy.

# %%
bits = [2, 7] if SMOKE else [1, 2, 3, 4, 5, 6, 7]
base = {
    "engines": "f32/f32",
    "objective": "grpo",
    "task": {"name": "sort", "difficulty": 2 if SMOKE else 4, "train_size": 64, "held_out_size": 16},
    "model": {"name": "tiny-dense", "num_hidden_layers": 1} if SMOKE else "tiny-dense",
    "optimizer": {"learning_rate": 0},
    "prompts_per_step": 2 if SMOKE else 8,
    "group_size": 2 if SMOKE else 16,
    "minibatches": 1,
    "steps": 2 if SMOKE else 10,
}
sites = [
    {"name": "bf16", "rounding": rounding, "format": {"mantissa_bits": mantissa}}
    for rounding in ("nearest_even", "toward_zero")
    for mantissa in bits
]
arms = simlab.listed(
    {
        f"{site['rounding']} {site['format']['mantissa_bits']}": {"engines.infer.residual": site}
        for site in sites
    }
)
result = simlab.sweep(
    base,
    arms * simlab.grid({"seed": [0] if SMOKE else [0, 1, 2]}),
    OUT,
    runs_per_batch=4,
    workers=0 if SMOKE else None,
)
result

# %% [markdown]
# All of it is one program. The mismatch halves with every bit, and truncation costs about one bit more than
# rounding to nearest.

# %%
frame = result.frame([])
found = frame.groupby("arm")["rms_log_rho"].mean()
figure, axes = plt.subplots(figsize=(4, 3))
for rounding in ("nearest_even", "toward_zero"):
    axes.plot(bits, [found[f"{rounding} {mantissa}"] for mantissa in bits], "o-", label=rounding)
axes.set(xlabel="mantissa bits", ylabel="RMS log rho", yscale="log")
axes.legend()
plt.show()

# %%
for rounding in ("nearest_even", "toward_zero"):
    values = np.asarray([found[f"{rounding} {mantissa}"] for mantissa in bits])
    assert (np.diff(values) < 0).all()
    slope = np.polyfit(bits, np.log2(values), 1)[0]
    print(f"{rounding}: each bit multiplies the mismatch by {2**slope:.2f}")

# %% [markdown]
# A whole engine is swept in the same way: `over={"engines": ["f32/bf16", "f32/fp8-e4m3", ...]}`. Engines of
# different static signature (another accumulator, another granularity of scaling) are programs of their own,
# which the planner counts.
