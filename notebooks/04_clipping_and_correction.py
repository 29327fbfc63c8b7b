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
# # Clipping and correction
#
# Two ratios appear in one loss. The PPO ratio $r = \pi_\theta / \pi_{\theta_{old}}$ measures how far the
# policy moved since the rollout, both in the training engine. A *clip* bounds it. The IS ratio $\rho =
# \pi_{train} / \pi_{infer}$ measures how much the two engines differ at the same weights. A *correction*
# weights tokens by it. The two are easily confused and change the gradient in different ways.
#
# The contribution of a token to the gradient is one number, its token coefficient: the derivative of the
# objective with respect to the token's log-probability.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np

from simlab.core.paths import committed_results
from simlab.core.results import Results
from simlab.models import enumerate_sequences
from simlab.objectives import TokenBatch, token_coefficients
from simlab.theory import noisy_pair, random_logits
from simlab.theory.budget import budget
from simlab.theory.correction_moments import CORRECTIONS, qualities, scale_to_std_rho
from simlab.theory.expectation import random_rewards

SMOKE = os.environ.get("SIMLAB_SMOKE") == "1"
TOKENS, START = 200, np.log(0.05)


def coefficients(objective, log_r=0.0, log_rho=0.0, **numbers):
    """Coefficients [2, TOKENS] of a right and a wrong answer, whose tokens run over `log_r` or `log_rho`."""
    shape = (2, TOKENS)
    batch = TokenBatch(
        logp=np.broadcast_to(np.float32(START + log_r), shape),
        logp_train=np.full(shape, START, np.float32),
        logp_infer=np.broadcast_to(np.float32(START - log_rho), shape),
        rewards=np.array([1.0, 0.0], np.float32),
        mask=np.ones(shape, bool),
        group_size=2,
    )
    # Relative to the coefficient at r = rho = 1.
    found = np.asarray(token_coefficients(objective, batch, **numbers))
    return found / np.abs(np.asarray(token_coefficients("reinforce", batch, advantage="grpo")))


# %% [markdown]
# ## What a clip does
#
# GRPO zeroes the gradient of a token only if its ratio moved far *in the direction of its advantage*: a token
# of a correct answer that became more probable, a token of a wrong answer that became less probable. A token
# that moved the other way keeps its coefficient, however large. The coefficients of a token that both answers
# share then no longer cancel. The sign-free clip (*cancel* Eq. 80) zeroes both.

# %%
log_r = np.linspace(-0.7, 0.7, TOKENS)
figure, axes = plt.subplots(1, 2, figsize=(7, 2.6), layout="constrained", sharey=True)
for axis, objective in zip(axes, ("grpo", "grpo_fix"), strict=True):
    for row, label, style in zip(
        coefficients(objective, log_r), ("right", "wrong"), ("-", "--"), strict=True
    ):
        # The two presets average over tokens differently; the figure compares where their gradient stops.
        axis.plot(np.exp(log_r), row / np.abs(row).max(), style, label=label)
    axis.set(xlabel="PPO ratio r", title=objective)
axes[0].set(ylabel="coefficient")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
plt.show()

# %% [markdown]
# ## What a correction does
#
# Now r = 1 and the engines differ. Truncation (TIS) weights a token by $\rho$ up to a bound. Masking (MIS)
# drops it beyond the bound. ACRL compares the current discrepancy with a reference X. While the discrepancy
# exceeds X, the sign of its exponent depends on the advantage: tokens that are more probable in the training
# engine get a larger weight in *wrong* answers and a smaller weight in correct ones.

# %%
log_rho = np.linspace(-2.5, 2.0, TOKENS)
rho = np.exp(log_rho)
apart = np.abs(np.exp(START) - np.exp(START - log_rho)).mean()
corrections = {
    "none": ("grpo", {}),
    "TIS": ("grpo+tis", {}),
    "MIS": ("grpo+mis", {}),
    "ACRL at Y = 2 X": ("grpo+acrl", {"acrl_reference": apart / 2}),
}
figure, axes = plt.subplots(1, 2, figsize=(7, 2.6), layout="constrained", sharey=True)
plain = np.abs(coefficients("grpo"))
for name, (objective, numbers) in corrections.items():
    weights = np.abs(coefficients(objective, 0.0, log_rho, **numbers)) / plain
    for axis, row in zip(axes, weights, strict=True):
        axis.plot(rho, row, label=name)
for axis, title in zip(axes, ("correct answer", "wrong answer"), strict=True):
    axis.set(xscale="log", xlabel="IS ratio rho", title=title)
axes[0].set(ylabel="weight of the token")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)
plt.show()

# %% [markdown]
# ## Why not correct complete sequences?
#
# The exact weight of a sequence is a product of T ratios, and its variance reduces the effective sample size.
# If rho has a standard deviation of s per token, the fraction $(1 + s^2)^{-T}$ of the samples remains.

# %%
lengths = np.unique(np.geomspace(1, 8192, 12 if SMOKE else 40).astype(int))
figure, axis = plt.subplots(figsize=(4.5, 2.6), layout="constrained")
for std_rho in (0.005, 0.02, 0.1, 0.5):
    axis.plot(lengths, [budget(std_rho, int(length)).ess for length in lengths], label=f"std rho {std_rho}")
axis.axhline(0.5, color="gray", linewidth=0.8)
axis.set(xscale="log", xlabel="tokens", ylabel="fraction of samples left")
figure.legend(loc="outside right upper", frameon=False, fontsize="small")
plt.show()
budget(0.1, 70)

# %% [markdown]
# ## Bias and variance of each correction
#
# For a policy small enough to enumerate every answer, bias and standard deviation of the corrected gradient
# are exact sums. Here: groups of 8, standard deviation of rho 0.3, relative to the norm of the exact
# gradient. The last column is the mean squared error of a mean over 64 groups.

# %%
space = enumerate_sequences(3, 2 if SMOKE else 5)
logits = random_logits(space, 0)
pair = scale_to_std_rho(0.3, lambda noise_std: noisy_pair(space, logits, noise_std, 0))
names = ("none", "token TIS", "token MIS", "sequence TIS", "sequence MIS", "sequence IS")
chosen = {name: CORRECTIONS[name] for name in names}
print(f"{'':14s}{'bias':>8s}{'std':>8s}{'MSE':>8s}")
for name, found in qualities(pair, random_rewards(space, 0), 8, corrections=chosen).items():
    print(f"{name:14s}{found.bias:8.3f}{found.std:8.2f}{found.mse(64):8.4f}")

# %% [markdown]
# ## And in training
#
# One gradient is not a run. The runs of the stored leaderboard train for 200 steps on responses of 65 tokens.
# The inference engine truncates to the FP8 range with 2 to 3 mantissa bits; the arm "FP8, 3 bits" rounds E4M3
# to nearest. "Zero mismatch" truncates identically in both engines. Each arm has 24 initial policies. Reward
# and RMS log rho over the last quarter:

# %%
results = Results(committed_results("leaderboard"))
runs, chunks = results.table("runs"), results.table("chunks")
late = chunks.merge(runs[["run", "label", "initial_policy"]], on="run").query("step >= 150")
by_label = (
    late.groupby(["label", "initial_policy"])[["reward", "rms_log_rho"]]
    .mean()
    .groupby("label")
    .agg(["mean", "sem"])
)
arms = ["no correction", "token TIS", "zero mismatch", "FP8, 3 bits"]
by_label.loc[[*arms, "BF16 control"]].round(2)

# %% [markdown]
# Without correction the mean reward ends far below that of the BF16 control. `simlab claims V6` prints the
# differences between remedies with their confidence intervals.
