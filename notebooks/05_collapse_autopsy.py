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
# # Autopsy of a collapse
#
# A policy is trained with an inference engine that rounds to coarse FP8. Its reward rises, stays level, and
# falls. Three questions: which metric changed first, which tokens are affected, and which rounding site
# contributes most to the mismatch?

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from simlab.core.paths import add_checkout_to_path, committed_results
from simlab.core.results import Results
from simlab.studies import change_point

SMOKE = os.environ.get("SIMLAB_SMOKE") == "1"

# %% [markdown]
# ## The run
#
# The runs of the experiment `flagship` are shipped with the package. We take the run without correction whose
# reward fell most, and its control: the run whose inference engine computes in BF16, with the same initial
# policy and seed.

# %%
results = Results(committed_results("flagship"))
steps = results.table("steps")
smooth = steps.sort_values("step").groupby(["arm", "warm_start", "seed"])["reward"].rolling(40).mean()
fall = smooth.groupby(level=[0, 1, 2]).agg(lambda curve: curve.max() - curve.iloc[-1])
warm_start, seed = fall["no correction"].idxmax()
case = steps[(steps["warm_start"] == warm_start) & (steps["seed"] == seed)]
dead, control = (case[case["arm"] == arm].set_index("step") for arm in ("no correction", "BF16 control"))

curves = {"reward": "linear", "rms_log_rho": "log", "entropy": "linear", "grad_norm": "log"}
figure, axes = plt.subplots(1, 4, figsize=(10, 2.4), layout="constrained")
for axis, (metric, scale) in zip(axes, curves.items(), strict=True):
    axis.plot(dead[metric].rolling(10, min_periods=1).mean(), label="coarse FP8")
    axis.plot(control[metric].rolling(10, min_periods=1).mean(), "--", label="BF16")
    axis.set(title=metric, xlabel="step", yscale=scale)
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
plt.show()

# %% [markdown]
# The control has the same learning rate and does not collapse, so the learning rate alone is not the cause.
#
# ## Which metric changed first
#
# A change point is the step that best splits a curve into two levels. The p-value is the probability of
# such a split in a curve without a change. Curves that span decades are analyzed on a logarithmic scale.


# %%
def level(metric, scale):
    """Means over ten steps; a step without any reward has no gradient, hence the floor of the logarithm."""
    means = dead[metric].groupby(dead.index // 10).mean()
    return np.log(means.clip(lower=1e-6)) if scale == "log" else means


order = {metric: change_point(level(metric, scale)) for metric, scale in curves.items()}
pd.DataFrame(
    {name: {"step": 10 * found.index, "p": round(found.p_value, 3)} for name, found in order.items()}
).T

# %% [markdown]
# ## Which tokens
#
# Mean rho of the tokens by their probability in the training engine. A rare token is sampled more often if
# the inference engine gives it too much probability, so mean rho of rare tokens is below 1. The effect grows
# during the run.

# %%
bins = results.table("bins")
mine = bins[(bins["warm_start"] == warm_start) & (bins["seed"] == seed) & (bins["arm"] == "no correction")]
mine = mine.assign(
    part=np.where(mine["step"] < 0.3 * mine["step"].max(), "early", "late"),
    total=mine["mean_rho"] * mine["tokens"],
)
sums = mine[mine["tokens"] > 0].groupby(["part", "low", "high"])[["total", "tokens"]].sum()
(sums["total"] / sums["tokens"]).unstack("part").round(3)

# %% [markdown]
# ## Which rounding site
#
# We score the same tokens with every combination of rounding sites of the inference engine. The Shapley value
# of a site is its mean contribution over all orders of adding sites; the values sum to the total. The policy
# is an initial policy, because the stored runs keep curves, not weights. `simlab explain` does this for a
# checkpoint.

# %%
add_checkout_to_path()  # makes `experiments` importable, also where only the wheel is installed

from experiments.measurements.attribution_ladder import subject
from experiments.studies.runs import SMOKE as SMALL
from simlab.studies.explain import explain

if SMOKE:
    rounded = {"weights": "e4m3fn"}
    engines = {"name": "f32/f32", "infer": {"projection": rounded, "lm_head": rounded}}
    policy = subject({**SMALL, "engines": engines}, 1, 0)
else:
    policy = subject({"warm_start": "add-sharp-0"}, 16, 0)
tables = explain(policy, lambda items, *_: items, top=5)
pd.DataFrame(tables["groups"])[["group", "shapley", "alone", "without"]].round(3)

# %% [markdown]
# And the five tokens on which the engines differ most (in brackets):

# %%
pd.DataFrame(tables["tokens"]).round(4)

# %% [markdown]
# ## One token, layer by layer
#
# The error of the worst token after every layer, and its effect on the probabilities.

# %%
pd.DataFrame(tables["autopsy"]).round(4)
