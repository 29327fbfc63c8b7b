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
# # Real models
#
# simlab saves a policy as a Qwen3-MoE checkpoint that vLLM can serve. Here we train a small one and save it.
# One engine samples and another scores. Then we find the emulated engine that best predicts the measured
# mismatch. With `SIMLAB_SMOKE=1` both engines are emulated. Otherwise build two environments once:
#
#     python scripts/make_env.py hf
#     python scripts/make_env.py vllm
#
# If only the wheel is installed, install the packages next to it: `pip install 'simlab[vllm]' transformers`.
#
# `docs/real_models.md` shows the same steps as commands, and how to train on real rollouts.

# %%
import os
import tempfile
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np

from simlab.checkpoints import load_checkpoint, save_checkpoint
from simlab.engines import ENGINES
from simlab.models import MODELS, TransformerConfig
from simlab.serving.calibration import (
    calibrate,
    get_catalog_emulations,
    read_measured_pair,
    score_with_emulation,
)
from simlab.serving.engine_probe import Probe
from simlab.serving.protocol import SamplingRequest
from simlab.studies.experiment import Experiment, execute
from simlab.tasks import EOS_TOKEN_ID, PAD_TOKEN_ID, TASKS
from simlab.training.warm_start import WarmStart, warm_start

SMOKE = os.environ.get("SIMLAB_SMOKE") == "1"
OUT = Path(tempfile.mkdtemp() if SMOKE else "runs/real_models")
SAMPLER, SCORER = ("bf16", "f32") if SMOKE else ("vllm:bfloat16", "transformers:float32")

# %% [markdown]
# ## Train and save
#
# vLLM on a CPU needs heads of width 32 and experts whose widths are multiples of 32; this is the smallest
# such model. On the command line: `simlab warm-start add tiny-moe --steps 600 --out policy.npz`, `simlab
# checkpoint save`.

# %%
task = TASKS["add"]()
config = TransformerConfig(num_hidden_layers=1, num_experts=4) if SMOKE else MODELS["tiny-moe"]
how = WarmStart(steps=5 if SMOKE else 600, batch=8 if SMOKE else 128)
params, losses = jax.jit(warm_start, static_argnums=(0, 1))(task, config, how, jax.random.key(0))
checkpoint = save_checkpoint(OUT / "policy", config, params)
sorted(path.name for path in checkpoint.iterdir())

# %% [markdown]
# The checkpoint loads bit-exactly. `vllm serve runs/real_models/policy` would serve this folder, with its
# tokenizer.

# %%
config, params = load_checkpoint(checkpoint)

# %% [markdown]
# ## Probe
#
# The sampling engine answers held-out prompts. Both engines score the answers. After each pair all tables are
# on disk. On the command line:
# `simlab probe runs/real_models/policy --task add --sample vllm:bfloat16 --score transformers:float32`.

# %%
prompts = task.prompt_set("held_out")[: 8 if SMOKE else 128]
sampling = SamplingRequest(
    max_tokens=task.response_length, eos_token_id=EOS_TOKEN_ID, pad_token_id=PAD_TOKEN_ID
)


def run(run):
    Probe(run).measure(config, params, prompts, [SAMPLER], [SCORER], sampling)


probe = Experiment(name="probe", question="?", decision_rule="none", minutes=1, run=run)
results = execute(probe, OUT / "probe")
if "pairs" not in results.table_names:
    raise SystemExit("No engine could be measured:\n" + "\n".join(results.table("failures")["error"]))
results.table("pairs").set_index(["sampling_engine", "scoring_engine"])[
    ["tokens", "std_rho", "rms_log_rho", "router_flips"]
]

# %% [markdown]
# The first row compares decoding with prefill in one engine. The second row is the mismatch.
#
# ## Calibrate
#
# Which engine of the catalog gives the same distribution of log rho in every bin of probability? Distance 0
# is a perfect prediction; distance 1 is as bad as predicting no mismatch. On the command line, with the
# figure below: `simlab calibrate runs/real_models/probe runs/real_models/policy --sample vllm:bfloat16
# --score transformers:float32 --engine vllm-bf16 --engine bf16 --out runs/calibration`.

# %%
tokens, samples = results.table("tokens"), results.table("samples")
prompts, responses, mask, logp_train, logp_infer = read_measured_pair(tokens, samples, SAMPLER, SCORER)
predicted_train = score_with_emulation(params, config, ENGINES["f32"], prompts, responses)


def predict(engine):
    return predicted_train - score_with_emulation(params, config, engine, prompts, responses)


candidates = get_catalog_emulations(("f32", "bf16") if SMOKE else ("f32", "bf16", "vllm-bf16", "fp16"))
fits = calibrate(logp_train, logp_infer, mask, predict, candidates, resamples=20 if SMOKE else 200)
for fit in fits:
    interval = f"[{fit.ci_low:.2f}, {fit.ci_high:.2f}]"
    print(f"{fit.emulation:10} {fit.distance:6.2f} {interval} {fit.verdict}: {fit.note}")

# %%
best = predict(candidates[fits[0].emulation].engine)
levels = np.linspace(0.01, 0.99, 50)
figure, axes = plt.subplots(figsize=(3.4, 3))
measured = np.quantile((logp_train - logp_infer)[mask], levels)
axes.plot(measured, np.quantile(best[mask], levels), "o", markersize=3)
axes.axline((0, 0), slope=1, color="gray", linewidth=0.7)
axes.set(xlabel="measured log rho", ylabel=f"predicted by {fits[0].emulation}")
plt.show()

# %% [markdown]
# A poor fit is also a result: its note names what the emulation does not model. `simlab run real_pairs`
# repeats this for vLLM in five formats (among them W8A8), for llama.cpp, and for a pretrained model.
