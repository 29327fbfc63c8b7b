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
# # Which GPU sampled this?
#
# GPUs of different generations can give different sums of the same products. A tensor core aligns a block of
# products to the largest one, truncates the lowest bits, and adds. The block size and the number of bits
# differ between GPUs. simlab emulates these sums bit-exactly. A dot product of 128 terms on three GPUs:

# %%
import os

import matplotlib.pyplot as plt
import numpy as np

from simlab.core.paths import add_checkout_to_path

add_checkout_to_path()  # makes `experiments` importable, also where only the wheel is installed

from experiments.measurements.gpu_pairs.factors import between, with_accumulator_bits
from experiments.measurements.softmax import real
from simlab.engines import ENGINES, matmul
from simlab.engines.kernel_order import Promoted
from simlab.engines.tensor_core import TENSOR_CORES
from simlab.formats import quantize
from simlab.studies.attribution import shapley
from simlab.theory.engine_pairs import engine_rows

SMOKE = bool(os.environ.get("SIMLAB_SMOKE"))
rng = np.random.default_rng(0)


def draw(terms):
    """E4M3 numbers [16, K] and [K, 16], and the exact sums of their products."""
    a, b = (np.asarray(quantize(rng.normal(size=shape), "e4m3fn")) for shape in ((16, terms), (terms, 16)))
    return a, b, a.astype(float) @ b.astype(float)


a, b, exact = draw(128)
for gpu in ("ada", "hopper", "blackwell"):
    print(f"{gpu:10s} {float(matmul(a, b, accumulator=gpu, format='e4m3fn')[0, 0])!r}")
print(f"{'exact':10s} {exact[0, 0]!r}")

# %% [markdown]
# ## The error of a 13-bit accumulator
#
# In FP8, Ada and Hopper keep 13 bits in their accumulators, Blackwell 25. The error grows with the length of
# the sum, unless the kernel moves partial sums to float32 every 128 products, as DeepGEMM does.

# %%
accumulators = {
    "H100": TENSOR_CORES["hopper"]["e4m3fn"],
    "H100, promoted every 128": Promoted(TENSOR_CORES["hopper"]["e4m3fn"]),
    "B200": TENSOR_CORES["blackwell"]["e4m3fn"],
}
lengths = [64, 256] if SMOKE else [64, 128, 256, 512, 1024, 2048, 4096]
error = {name: [] for name in accumulators}
for terms in lengths:
    a, b, exact = draw(terms)
    for name, accumulator in accumulators.items():
        wrong = np.asarray(matmul(a, b, accumulator=accumulator), float) - exact
        error[name].append(np.sqrt(np.mean(wrong**2) / np.mean(exact**2)))
figure, axis = plt.subplots(figsize=(4.5, 2.8), layout="constrained")
for name, line in error.items():
    axis.loglog(lengths, line, "o-", label=name)
axis.set(xlabel="terms of the sum", ylabel="relative error", title="FP8 products")
axis.legend(frameon=False, fontsize="small")
plt.show()

# %% [markdown]
# ## Identify the GPU
#
# Suppose we receive log-probabilities of sampled tokens. We have the weights, but do not know the GPU. We
# score the tokens under every emulated GPU: only the one that sampled them agrees bit-exactly. (The policy is
# one quantized product and a head, made from next-token logits of SmolLM2.)

# %%
logits = np.asarray(real.load(10 if SMOKE else 100).logits[:, -128:], float)
logits -= logits.max(-1, keepdims=True)
probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
tokens = np.array([rng.choice(128, size=32, p=row) for row in probabilities])


def score(engine):
    """Log-probabilities of the tokens [positions, 32]."""
    return np.take_along_axis(np.log(engine_rows(logits, engine)), tokens, 1)


gpus = ["h100-bf16", "h100-fp8", "b200-fp8"]
if not SMOKE:
    gpus += ["a100-bf16", "ada-fp8", "h100-fp8-deepgemm", "b200-mxfp8", "b200-nvfp4"]
scores = {gpu: score(ENGINES[gpu]) for gpu in gpus}
received = scores["h100-fp8"]
for gpu in sorted(gpus, key=lambda gpu: np.abs(scores[gpu] - received).mean()):
    rms = np.sqrt(np.mean((scores[gpu] - received) ** 2))
    print(f"{gpu:18s} RMS log rho {rms:.1e}, equal tokens {np.mean(scores[gpu] == received):.0%}")

# %% [markdown]
# ## Format or accumulator?
#
# A BF16 trainer and an FP8 rollout on an H100 differ in format and in accumulator. How much mismatch does
# each cause? We exchange them in both orders and average the changes: the exact Shapley values, which sum
# to the total.

# %%
names = ("format", "accumulator")
sets = [frozenset(), frozenset({"format"}), frozenset({"accumulator"}), frozenset(names)]
under = {changed: score(between(changed)) for changed in sets}
value = {changed: np.mean((under[changed] - under[frozenset()]) ** 2) for changed in sets}
shares = shapley(value.__getitem__, names)
for name, share in shares.items():
    print(f"{name}: {share / value[frozenset(names)]:+.2%} of the mean squared log rho")
print("remainder:", value[frozenset(names)] - sum(shares.values()))

# %% [markdown]
# ## How many bits are enough?
#
# The bits of the accumulator are data, so one compiled function sweeps them. With fewer bits than the
# hardware has, the accumulator dominates the error. With more bits, the error of the format hides that of
# the accumulator.

# %%
bits = [5, 13, 25] if SMOKE else [5, 6, 7, 8, 9, 11, 13, 16, 20, 25]
swept = {count: score(with_accumulator_bits(count)) for count in bits}
figure, axis = plt.subplots(figsize=(4.5, 2.8), layout="constrained")
for name, reference in (("to a BF16 trainer", scores["h100-bf16"]), ("to 25 bits", scores["b200-fp8"])):
    distance = [np.sqrt(np.mean((swept[count] - reference) ** 2)) for count in bits]
    axis.semilogy(bits, np.where(np.array(distance) > 0, distance, np.nan), "o-", label=name)
axis.axvline(13, color="gray", linewidth=0.8)
axis.set(xlabel="fraction bits of the FP8 accumulator", ylabel="RMS log rho", title="H100: 13, B200: 25")
axis.legend(frameon=False, fontsize="small")
plt.show()
