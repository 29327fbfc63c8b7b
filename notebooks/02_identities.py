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
# # Identities: what must hold, and what does not
#
# Training runs are noisy; identities are not. Here a policy is a table of softmax rows, small enough to
# enumerate *every* sequence that it can produce. Expectations are sums, gradients are exact, and all numbers
# are float64. Three questions:
#
# 1. Why does the IS ratio rho look biased for rare tokens, and why does the sign depend on the engine whose
#    probabilities define "rare"?
# 2. What does sampling from another engine add to the objective?
# 3. When do the updates of a token that all samples share cancel?

# %%
import os

import matplotlib.pyplot as plt
import numpy as np

from simlab.models import enumerate_sequences
from simlab.theory import noisy_pair, random_logits
from simlab.theory.expectation import softmax

SMOKE = bool(os.environ.get("SIMLAB_SMOKE"))

# %% [markdown]
# ## 1. Survival bias
#
# The inference engine samples a token; rho = pi_train / pi_infer of that token. The mean of rho over all
# tokens is exactly 1 (and that of 1/rho is at least 1: *hacking* Eq. 46). Over a *bin of tokens*, the mean
# of rho is the bin's mass under pi_train divided by its mass under pi_infer. It therefore depends on how the
# bin was chosen.

# %%
from simlab.theory.importance import inverse_rho_mean, mean_rho_in_bins, rho_mean, survival_bias

rng = np.random.default_rng(0)
logits = rng.normal(scale=1.5, size=(2_000 if SMOKE else 20_000, 64))
noise = 0.2 * rng.normal(size=logits.shape)
train, infer = softmax(logits), softmax(logits + noise)
print("mean of rho  ", rho_mean(train, infer)[0].mean())
print("mean of 1/rho", inverse_rho_mean(train, infer)[0].mean())

# %%
edges = np.geomspace(1e-4, 1, 13)
centers = np.sqrt(edges[1:] * edges[:-1])
figure, axis = plt.subplots(figsize=(5, 3))
for by, sorting, style in (("train", train, "o-"), ("infer", infer, "s--")):
    measured, _ = mean_rho_in_bins(train, infer, edges, by)
    predicted = 1 + survival_bias(sorting, 0.2**2, by, logit_variance=1.5**2)
    expected, _ = mean_rho_in_bins(sorting * predicted, sorting, edges, by)
    axis.plot(centers, measured, style, label=f"sorted by pi_{by}")
    axis.plot(centers, expected, color="gray", linewidth=0.8)
axis.axhline(1, color="black", linewidth=0.5)
axis.set(xscale="log", xlabel="probability of the token", ylabel="mean rho")
axis.legend()
plt.show()

# %% [markdown]
# The tokens and the engines are the same; the signs are opposite. Binned by pi_train, rare tokens have a mean
# rho *below* 1, by the small amount -s² (sum p² - p). Binned by pi_infer, their mean rho is far *above* 1:
# the noise of the inference engine made these tokens rare. Gray: the prediction.

# %% [markdown]
# ## 2. The objective that training optimizes
#
# *hacking* Eq. 10 writes the change of the objective as the sum over tokens of Cov(X_t, 1/rho_t). But
# complete sequences are sampled, so all pairs (t, s) contribute. The printed sum is 1/T of the exact value.

# %%
from simlab.theory.hacking import objective_gap

for length in (1, 2, 3, 5):
    space = enumerate_sequences(3, length)
    pair = noisy_pair(space, random_logits(space, 0), noise_std=0.003)
    values = np.random.default_rng(1).normal(size=(len(space.tokens), 1))
    gap = objective_gap(pair, np.repeat(values / length, length, axis=1))
    print(
        f"T = {length}: printed / exact {gap.printed / gap.exact:.3f}, "
        f"all pairs / exact {gap.double_sum / gap.exact:.3f}"
    )

# %% [markdown]
# For the same reason token-level corrections keep most of the bias of long sequences. Sequence-level
# corrections remove it and increase the variance. The table gives exact values for every correction. Masks
# remove sequences from loss and baseline; the weights of ACRL depend on the discrepancy of the group:

# %%
from simlab.theory.correction_moments import qualities, scale_to_std_rho
from simlab.theory.expectation import random_rewards

space = enumerate_sequences(3, 4 if SMOKE else 8)
table = random_logits(space, 0)
pair = scale_to_std_rho(0.3, lambda noise_std: noisy_pair(space, table, noise_std))
found = qualities(pair, random_rewards(space, 0), size=16)
names = sorted(found, key=lambda name: -found[name].bias)
figure, axes = plt.subplots(ncols=2, figsize=(7, 4), sharey=True, layout="constrained")
axes[0].plot([found[name].bias for name in names], names, "o")
axes[1].plot([found[name].std for name in names], names, "s")
axes[0].set(xlabel="bias / |gradient|", title="std of rho = 0.3")
axes[1].set(xlabel="std of one group / |gradient|")
for axis in axes:
    axis.set_xlim(left=0)
    axis.grid(axis="y")
plt.show()

# %% [markdown]
# ## 3. Cancellation on a shared token
#
# All samples of a group begin with the same token. Their advantages sum to zero, so the updates of this token
# cancel if weights are per token (*cancel* Eq. 9). They do not cancel if a weight depends on the complete
# sequence (Eq. 13), or if a clip depends on the sign of the advantage (Eq. 75, 76). The objectives themselves
# show all three:

# %%
from simlab.theory.cancellation import group_batch, objective_leftover

rng = np.random.default_rng(0)
# The sequence clip is wide, so that only the coupling has an effect.
wide = {"clip_low": 1.0, "clip_high": 100.0}
settings = {"grpo": {}, "grpo_fix": {}, "gspo": wide, "dfpo_none": wide, "dfpo_min": wide, "dfpo_orth": wide}
shared = np.linspace(-0.5, 0.5, 7 if SMOKE else 21)
log_ratio = np.repeat(0.3 * rng.normal(size=(1, 8, 5)), len(shared), axis=0)
log_ratio[:, :, 0] = shared[:, None]
rewards = np.tile(np.array([0.0, 1, 1, 0, 1, 0, 0, 0]), (len(shared), 1))
figure, axis = plt.subplots(figsize=(5, 3))
for (name, clip), style in zip(settings.items(), ("-", "--", "-.", ":", "-", "--"), strict=True):
    total, size = objective_leftover(name, group_batch(log_ratio, rewards), **clip)
    axis.plot(np.exp(shared), total / np.where(size > 0, size, 1), style, label=name)
axis.set(xlabel="PPO ratio of the shared token", ylabel="sum / sum of absolute values")
axis.legend(fontsize=7)
plt.show()

# %% [markdown]
# `grpo` cancels for ratios from 0.8 to 1.2 and not outside; `grpo_fix` cancels everywhere; `gspo` nowhere.
# The stop-gradient alone (`dfpo_none`) does not change this; the transforms of DFPO restore cancellation.
# With *unequal lengths* they do not, because each sample is divided by its own length after balancing:

# %%
from simlab.theory.cancellation import length_counterexample

length_counterexample()

# %% [markdown]
# ## The three answers to 10 + 10
#
# The worked example of *cancel* Appendix A, on a table of nine words: "The answer is 25 .", "The answer
# is 20 .", "10 + 10 = 20 .". The first is wrong. With sequence weights the template that the first two share
# still moves, and the probabilities of the two correct answers drift apart.

# %%
from simlab.theory.drift import TOY, three_trajectories

print(*TOY, sep="\n")
for name, value in three_trajectories().items():
    print(f"{name:30}", np.round(value, 4))

# %% [markdown]
# ## All identities
#
# `simlab theory` checks all of this and more in a few minutes. Here are the rows of one paper.

# %%
from simlab.studies.exact import compute_row, exact_checks
from simlab.studies.loading import load_claims

chosen = {name: claim for name, claim in load_claims().items() if claim.paper == "acrl"}
for check in exact_checks(chosen):
    row = compute_row(*check)
    print(f"{row['claim']:4} {row['equation']:26} {row['verdict']:10} {row['found'][:90]}")
