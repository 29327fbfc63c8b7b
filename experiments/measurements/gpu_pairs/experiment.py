"""Measure the mismatch of all pairs of GPUs, and attribute it to format, accumulator and order."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from experiments.measurements.gpu_pairs import factors, vectors, verdicts
from experiments.measurements.gpu_pairs.measures import RESAMPLES, mismatch, share_row, squares
from experiments.measurements.gpu_pairs.policies import Policy, smollm2, train_policy
from simlab.core.results import Results
from simlab.engines import ENGINES
from simlab.studies import Measured
from simlab.studies.attribution import shapley, subsets
from simlab.studies.experiment import Experiment, ExperimentContext

GPUS = (
    "a100-bf16",
    "h100-bf16",
    "b200-fp8",
    "h100-fp8",
    "h100-fp8-deepgemm",
    "ada-fp8",
    "b200-mxfp8",
    "b200-nvfp4",
)
TRAINER = "h100-bf16"


@dataclass(frozen=True)
class GpuPairSizes:
    """Sizes of the measurement: `models` by `seeds`, `prompts` each, and `positions` of real logits."""

    seeds: tuple[int, ...] = (0, 1)
    models: tuple[str, ...] = ("tiny-dense", "tiny-moe")
    prompts: int = 64
    positions: int = 300
    tokens: int = 16
    steps: int = 600
    gpus: tuple[str, ...] = GPUS
    bits: tuple[int, ...] = (7, 9, 11, 13, 16, 20, 25)


FULL = GpuPairSizes()
SMOKE = GpuPairSizes(
    seeds=(0,), models=(), positions=20, gpus=("a100-bf16", "h100-bf16", "b200-fp8", "h100-fp8")
)


def run(run: ExperimentContext) -> None:
    size = SMOKE if run.smoke else FULL
    seeds = run.seeds(size.seeds)
    run.configure(**asdict(size), resamples=RESAMPLES, rules=verdicts.RULES)
    with run.phase("vectors"):
        tables: dict[str, list[dict]] = {"vectors": vectors.compare()}
    sources = {}
    for model, seed in [("smollm2", seeds[0]), *((model, seed) for model in size.models for seed in seeds)]:
        with run.phase(f"{model} {seed}"):
            if model == "smollm2":
                policy = smollm2(size.positions, size.tokens, seed)
            else:
                policy = train_policy(model, seed, size.prompts, size.steps)
            for name, rows in measure(run, policy, size).items():
                tables.setdefault(name, []).extend({"policy": model, "seed": seed} | row for row in rows)
        sources[f"{model} {seed}"] = policy.source
    run.configure(sources=sources)
    tables["verdicts"] = verdicts.judge(tables)
    for name, rows in tables.items():
        run.table(name, rows)
    for row in tables["verdicts"]:
        run.report(f"{row['claim']} {row['verdict']}: {row['measured']}")


def measure(run: ExperimentContext, policy: Policy, size: GpuPairSizes) -> dict[str, list[dict]]:
    """Score the policy under every engine; compare GPUs, factors, orders and bits of the accumulator."""

    def pair(train: np.ndarray, infer: np.ndarray) -> dict[str, float]:
        return mismatch(train, infer, policy.mask)

    scores = {gpu: policy.score(ENGINES[gpu]) for gpu in run.track(size.gpus, f"GPUs, {policy.name}")}
    sets = subsets(factors.FACTORS)
    changed = {s: policy.score(factors.between(s)) for s in run.track(sets, f"factors, {policy.name}")}
    orders, bits = [], []
    for name, (gpu, engine) in factors.orders(policy.attends).items():
        orders.append({"order": name, "gpu": gpu} | pair(scores[gpu], policy.score(engine)))
    for count in size.bits:
        scored = policy.score(factors.with_accumulator_bits(count))
        for train in (TRAINER, "b200-fp8"):
            bits.append({"bits": count, "train": train} | pair(scores[train], scored))
    names = [(train, infer) for train in size.gpus for infer in size.gpus]
    return {
        "pairs": [{"train": t, "infer": i} | pair(scores[t], scores[i]) for t, i in names],
        "factors": [{"changed": "+".join(sorted(s))} | pair(scores[TRAINER], changed[s]) for s in sets],
        "shares": share_rows(changed, policy.mask),
        "orders": orders,
        "bits": bits,
    }


def share_rows(changed: dict[frozenset[str], np.ndarray], mask: np.ndarray) -> list[dict]:
    """Return each factor's exact Shapley share of the mean squared log rho, with its interval."""
    value = {s: squares(changed[frozenset()], scores, mask) for s, scores in changed.items()}
    total = value[frozenset(factors.FACTORS)]
    shares = shapley(value.__getitem__, factors.FACTORS)
    return [{"factor": name} | share_row(by_prompt, total) for name, by_prompt in shares.items()]


def collect_evidence(results: Results) -> list[Measured]:
    """T1 to T4 from the stored tables."""
    tables: Any = {name: results.table(name).to_dict("records") for name in results.table_names}
    return verdicts.collect_evidence(tables)


EXPERIMENT = Experiment(
    name="gpu_pairs",
    question="How far are two GPUs apart, and is it the format, the accumulator or the order?",
    decision_rule=" ".join(f"{claim}: {rule}." for claim, rule in verdicts.RULES.items()),
    run=run,
    minutes=6.0,
    claims=tuple(verdicts.RULES),
    kind="measurement",
    on_one_thread=True,
    collect_evidence=collect_evidence,
)
