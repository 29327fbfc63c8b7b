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
# # Diagnose a training run
#
# In two runs the engines disagree by about 0.05 nats per token. One run samples in FP8 without a fault. In
# the other, a quarter of the rows of the output head never reached the inference engine. Averages over tokens
# do not distinguish the runs, but the distribution over tokens does.
#
# The logs are synthetic, with an injected fault, so this notebook needs no GPU and no checkpoint. The verl
# plug-in writes files of the same format, and `simlab diagnose FILE` prints the answers below.

# %%
import os
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from simlab.diagnosis import diagnose
from simlab.diagnosis.injected_faults import generate_log
from simlab.diagnosis.log import log_rho
from simlab.diagnosis.log_writer import write_log

SMOKE = os.environ.get("SIMLAB_SMOKE") == "1"
FOLDER, SEED = Path(tempfile.mkdtemp()), 4
SIZE = {"sequences": 64, "length": 64} if SMOKE else {"sequences": 256, "length": 96}

# %% [markdown]
# ## Two runs with the same averages

# %%
broken = generate_log("partial", 0.1, SEED, **SIZE)


def level(log):
    """Return mean |log rho|, nats."""
    return float(np.abs(log_rho(log)).mean())


# Select the FP8 run with the nearest mean |log rho| from runs with increasing rounding noise.
noisy = [generate_log("no_fault", 0, SEED, noise=noise, **SIZE) for noise in np.geomspace(0.03, 0.36, 12)]
no_fault = min(noisy, key=lambda log: abs(level(log) - level(broken)))
logs = {"FP8 without fault": no_fault, "broken sync": broken}
paths = {name: write_log(log, FOLDER / f"{name.replace(' ', '_')}.parquet") for name, log in logs.items()}
found = {name: diagnose(path) for name, path in paths.items()}
shown = ["discrepancy_per_token", "rms_log_rho", "std_rho", "k3_kl", "log_ppl_abs_diff", "pcc"]
pd.DataFrame({name: {metric: result.metrics[metric] for metric in shown} for name, result in found.items()})

# %% [markdown]
# ## The diagnosis
#
# Each cause has a probability, calibrated on logs that the fit did not see (docs/diagnosis.md). If it is low,
# the cause is only a hypothesis to check. At ten times this mismatch, the diagnosis confuses rounding with a
# failed weight sync. vLLM with an FP8 cache can come near this size (docs/real_models.md).

# %%
for name, result in found.items():
    cause = result.causes[0]
    print(f"{name}: {cause.cause} ({cause.probability:.0%})")
    for line in (*cause.evidence, f"check: {cause.check}", f"fix: {cause.fix}"):
        print("   ", line)
assert found["FP8 without fault"].causes[0].cause == "rounding"
assert found["broken sync"].causes[0].cause == "weight_sync"

# %% [markdown]
# ## The error per token id
#
# Rounding errors of one token vary in sign. A wrong row of the head gives errors of one sign for its token.
# The mean error per token id therefore separates the two.

# %%
figure, axis = plt.subplots(figsize=(5, 2.8), layout="constrained")
for name, log in logs.items():
    probs = np.exp(log.logp_infer)
    middle = (probs > 0.1) & (probs < 0.9)
    frame = pd.DataFrame({"id": log.ids[middle], "log_rho": log_rho(log)[middle]})
    by_token = frame.groupby("id")["log_rho"].agg(["mean", "sem"]).sort_values("mean").reset_index()
    axis.errorbar(by_token.index, by_token["mean"], by_token["sem"], fmt="o", markersize=3, label=name)
axis.axhline(0, color="gray", linewidth=0.8)
axis.set(xlabel="token ids, sorted", ylabel="mean log rho (nats)")
axis.legend(frameon=False, fontsize="small")
plt.show()

# %% [markdown]
# ## The other questions
#
# The diagnosis also answers these questions from the same file, or reports that data are missing. All answers
# for the run without a fault:

# %%
pd.DataFrame(
    [
        {"question": answer.question, "answer": answer.verdict, "confidence": round(answer.confidence, 2)}
        for answer in found["FP8 without fault"].answers.values()
    ]
)

# %% [markdown]
# ## Your own run
#
# With verl 0.9: install simlab in its environment, set one variable, train a few steps, run the command.
#
# ```console
# $ pip install '.[verl]'        # from a checkout
# $ python -m verl.trainer.main_ppo ... +ray_kwargs.ray_init.runtime_env.env_vars.SIMLAB_VERL_DUMP=/data/dumps
# $ simlab diagnose /data/dumps --out runs/mine --figure
# ```
#
# From slime: `--save-debug-train-data`. From anything else: Parquet or JSON lines, see `docs/diagnosis.md`.
