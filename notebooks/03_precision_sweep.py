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
# A number format is a record of numbers: mantissa bits, smallest exponent, largest value. Precision can
# therefore be swept like a learning rate, without compiling a function for each format. Here the inference
# engine rounds the residual stream to fewer and fewer mantissa bits, in two rounding modes. We measure the
# resulting mismatch.

# %%
import os
import tempfile

import matplotlib.pyplot as plt
import numpy as np

import simlab

SMOKE = os.environ.get("SIMLAB_SMOKE") == "1"
OUT = tempfile.mkdtemp() if SMOKE else "runs/precision_sweep"

# %% [markdown]
# ## Sweep a number of one rounding site
#
# `engines` names a pair train/infer; a dotted name sets a field of it. The site `engines.infer.residual` gets
# the format BF16 with another number of mantissa bits. The learning rate is 0, so the policy stays the same
# and only the engines differ. Each step draws new prompts, so the mean over steps is a mean over prompts.

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
# One compiled function serves all runs. Each additional bit halves the mismatch. Truncation costs about one
# bit compared with rounding to nearest.

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
# Complete engines are swept in the same way: `over={"engines": ["f32/bf16", "f32/fp8-e4m3", ...]}`. Engines
# with different static signatures (another accumulator, another granularity of scaling) need separate
# compiled functions; the planner counts them.
