"""Diagnose logs of vLLM with real faults: reloads, temperature, top-p, a stuck engine, stale sequences.

simlab's trained mixture of experts is sampled by vLLM and scored by simlab in float32. Needs
`python scripts/make_env.py vllm`; the smoke version samples with an engine of simlab.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

from simlab.core.json_value import Json
from simlab.diagnosis import rank_causes
from simlab.diagnosis.log import TokenLog
from simlab.integrations.live_diagnosis import as_log
from simlab.models import MODELS, TransformerConfig
from simlab.models.parameters import Params
from simlab.serving.jax_engine import JaxEngine
from simlab.serving.open_engine import find_python
from simlab.serving.protocol import RealEngine, SamplingRequest
from simlab.serving.server_process import Message
from simlab.serving.vllm_engine import VllmEngine
from simlab.studies.experiment import Experiment, ExperimentContext
from simlab.sweeps.start import load_initial_params, read_start
from simlab.tasks import TASKS
from simlab.tasks.vocabulary import EOS_TOKEN_ID, PAD_TOKEN_ID

POLICY = "add-tiny-moe-0"
CONFIG = MODELS["tiny-moe"]
PROMPTS, STEPS, LENGTH = 256, 4, 16
UPDATE = 3e-3
Entry = tuple[str, str, TokenLog]


class ProcessedVllm(VllmEngine):
    """Reports log-probabilities of what it samples from, as verl has it do."""

    top_p = 1.0

    def get_load_options(self, config: TransformerConfig) -> Mapping[str, Json]:
        """Return also the kind of log-probabilities."""
        return {**super().get_load_options(config), "logprobs_mode": "processed_logprobs"}

    def _call(self, do: str, arrays: Mapping[str, np.ndarray], **header: object) -> Message:
        more = {"top_p": self.top_p} if do == "generate" else {}
        return super()._call(do, arrays, **header, **more)


def read_policy(folder: Path) -> Params:
    """Return the parameters of the trained mixture."""
    return load_initial_params(read_start(POLICY, CONFIG), TASKS["add"](), CONFIG, 0, folder)


def make_log(
    engine: RealEngine, policies: Sequence[Params], temperature: float = 1.0, prompts: int = PROMPTS
) -> TokenLog:
    """Sample each step from `engine` and score it in float32 with the policy of the step."""
    trainer, rows, asked = JaxEngine("f32"), [], TASKS["add"]().prompt_set()[:prompts]
    for step, policy in enumerate(policies):
        trainer.sync_weights(CONFIG, policy)
        sampling = SamplingRequest(
            max_tokens=LENGTH,
            eos_token_id=EOS_TOKEN_ID,
            pad_token_id=PAD_TOKEN_ID,
            seed=step,
            temperature=temperature,
        )
        generated = engine.generate(asked, sampling)
        scored = trainer.score(asked, generated.responses)
        rows.append((generated.mask, generated.responses, scored.logps, generated.logps))
    mask, ids, train, infer = (np.concatenate(columns) for columns in zip(*rows, strict=True))
    log = as_log(0, slice(None), train, infer, mask, ids, logp=None)
    return replace(log, step=np.repeat(np.arange(len(rows)), len(asked)))


def move(params: Params, steps: int) -> Params:
    """Return the policy after so many updates, all in one direction, of `UPDATE` a weight."""
    rng = np.random.default_rng(0)

    def change_leaf(leaf: jax.Array) -> jax.Array:
        return leaf + UPDATE * steps * rng.normal(size=leaf.shape).astype(np.float32)

    return jax.tree.map(change_leaf, params)


def reload_logs(params: Params) -> Iterator[Entry]:
    """Yield the log of an FP8 cache, and that after a reload that scrambles the experts on a CPU."""
    with VllmEngine(find_python("vllm"), kv_cache="fp8") as engine:
        engine.sync_weights(CONFIG, params)
        yield "FP8 cache", "rounding", make_log(engine, [params] * STEPS)
        # The same weights again; the assertion that would catch it is off, as in a run without one.
        engine.repack, engine.parity = False, float("inf")
        engine.sync_weights(CONFIG, params)
        yield "reload scrambles the experts", "weight_sync", make_log(engine, [params] * STEPS)


def sampler_logs(params: Params) -> Iterator[Entry]:
    """Yield logs without a fault, of a temperature, of top-p, of a stuck engine and of stale sequences."""
    with ProcessedVllm(find_python("vllm")) as engine:
        engine.sync_weights(CONFIG, params)
        yield "BF16", "rounding", make_log(engine, [params] * STEPS)
        yield "temperature 0.7", "temperature", make_log(engine, [params] * 2, temperature=0.7)
        engine.top_p = 0.8
        yield "top-p 0.8", "support", make_log(engine, [params] * 2)
        engine.top_p = 1.0
        # The engine keeps the weights of step 0 while the trainer moves on.
        stuck = make_log(engine, [move(params, step) for step in range(6)])
    yield "stuck engine", "weight_sync", stuck
    yield "stale, with versions", "staleness", replace(stuck, version=np.zeros_like(stuck.step))


def run(run: ExperimentContext) -> None:
    """Write the tables `logs` and `signatures`, one row per log."""
    run.configure(policy=POLICY, prompts=PROMPTS, steps=STEPS, update=UPDATE)
    params = read_policy(run.out)
    if run.smoke:
        engine = JaxEngine("bf16")
        engine.sync_weights(CONFIG, params)
        entries: list[Entry] = [("BF16 of the lab", "rounding", make_log(engine, [params], prompts=64))]
    else:
        entries = [*reload_logs(params), *sampler_logs(params)]
    rows, signs = [], []
    for name, cause, log in entries:
        best, signatures = rank_causes(log)
        apart = log.logp_train.astype(np.float64) - log.logp_infer
        rows.append(
            {
                "log": name,
                "cause": cause,
                "tokens": len(log.mask),
                "rms_log_rho": float(np.sqrt(np.mean(apart**2))),
                "named": best[0].cause,
                "probability": best[0].probability,
                "true_probability": next(c.probability for c in best if c.cause == cause),
            }
        )
        signs.append({"log": name} | signatures)
    run.table("logs", rows)
    run.table("signatures", signs)


EXPERIMENT = Experiment(
    name="diagnosis_real",
    question="Does `simlab diagnose` name real faults of a real engine?",
    decision_rule="None: one row per log of vLLM, with the cause and the cause named.",
    run=run,
    minutes=5.0,
    kind="measurement",
)
