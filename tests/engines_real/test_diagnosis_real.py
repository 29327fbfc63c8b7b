"""The diagnosis of real vLLM logs: honest BF16 with an FP8 cache, and a reload that broke the experts."""

import numpy as np
import pytest

from simlab.harness.diagnosis.log import LOWEST, TokenLog
from simlab.harness.diagnosis.weight_sync import weight_sync
from simlab.harness.jax_engine import JaxEngine
from simlab.harness.protocol import Sampling
from simlab.harness.vllm_engine import VllmEngine
from simlab.models import MODELS
from simlab.sweeps.start import first_params, read_start
from simlab.tasks import TASKS
from simlab.tasks.vocabulary import END, PAD
from tests.engines_real.frameworks import interpreter

pytestmark = pytest.mark.engines

CONFIG = MODELS["tiny-moe"]
PROMPTS = TASKS["add"]().prompt_set()[:256]


def _log(sampling_engine, trainer, steps=4):
    """Rollouts of one engine, scored by another: what a run would dump."""
    rows = []
    for step in range(steps):
        found = sampling_engine.generate(PROMPTS, Sampling(length=16, end=END, pad=PAD, seed=step))
        scored = trainer.score(PROMPTS, found.responses)
        rows.append((found.mask, found.responses, scored.logps, found.logps))
    mask, ids, train, infer = (np.concatenate(columns) for columns in zip(*rows, strict=True))
    lengths = mask.sum(1)
    return TokenLog(
        lengths=lengths,
        logp_train=np.clip(train[mask], LOWEST, 0),
        logp_infer=np.clip(infer[mask], LOWEST, 0),
        mask=np.ones(int(lengths.sum()), bool),
        step=np.repeat(np.arange(steps), len(PROMPTS)),
        ids=ids[mask],
    )


def test_an_honest_engine_and_a_broken_reload_are_told_apart(tmp_path):
    start = read_start("add-tiny-moe-0", CONFIG)
    params = first_params(start, TASKS["add"](), CONFIG, 0, tmp_path)
    trainer = JaxEngine("f32")
    trainer.sync_weights(CONFIG, params)
    with VllmEngine(interpreter("vllm"), kv_cache="fp8") as engine:
        engine.sync_weights(CONFIG, params)
        honest = weight_sync(_log(engine, trainer))
        # The same weights again; the assertion that would catch it is off, as in a run without one.
        engine.repack, engine.parity = False, float("inf")
        engine.sync_weights(CONFIG, params)
        broken = weight_sync(_log(engine, trainer))
    for name, answer in (("honest", honest), ("broken", broken)):
        print(name, answer.verdict, round(answer.sure, 2), *answer.evidence, sep="\n  ")
    assert not honest.found, honest
    assert broken.found, broken
    assert honest.sure > 0.6
    assert broken.sure > 0.9
