"""Measure a training step and its parts, its arithmetic floor, and the same step in PyTorch and TRL."""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import jax
import numpy as np

from experiments.benchmarks import step_floor
from experiments.benchmarks.engine_speed import measure_engines
from experiments.benchmarks.machine_speed import measure_machine
from experiments.benchmarks.step_floor import SIDE_BY_SIDE, timed_call
from experiments.benchmarks.step_speed_peers import EMULATED, Cases, Peer, name_peer, recipe_of
from experiments.benchmarks.timing import compile_call, interleave, time_call
from simlab.checkpoints import save_checkpoint
from simlab.models.parameters import Params, init_params
from simlab.serving.open_engine import find_interpreter
from simlab.studies.experiment import Experiment, ExperimentContext
from simlab.tasks.vocabulary import CHARACTERS
from simlab.training.recipe import Recipe, initial_state
from simlab.training.step import rollout, score, train_step

THREADS = sorted({1, os.cpu_count() or 1})
# Engine pair, and whether its numbers are compile-time constants or traced, so that they can be swept.
VARIANTS = {
    "float32": ("f32/f32", "constants"),
    "emulated": (EMULATED, "constants"),
    "emulated, traced": (EMULATED, "arguments"),
}
LIMITS = {
    "step / floor": 2.0,
    "rollout / floor": 3.0,
    "emulated / float32": 1.25,
    "pytorch / emulated": 1.5,
    "trl / emulated": 4.0,
}


def simlab_cases(name: str, recipe: Recipe, params: Params) -> Cases:
    """Rollout, scoring and step of one variant, compiled; the same parameters at every call."""
    state = initial_state(recipe, params, jax.random.key(1))
    trajectory = jax.jit(rollout)(recipe, state)
    stages: dict[str, tuple[Callable, tuple]] = {
        "rollout": (rollout, (state,)),
        "score": (score, (state.params, trajectory)),
        "step": (train_step, (state,)),
    }
    if VARIANTS[name][1] == "constants":
        stages = {stage: (partial(function, recipe), rest) for stage, (function, rest) in stages.items()}
    else:
        stages = {stage: (function, (recipe, *rest)) for stage, (function, rest) in stages.items()}
    return {(name, stage): compile_call(function, *rest) for stage, (function, rest) in stages.items()}


def peers(recipe: Recipe, params: Params) -> tuple[list[Peer], str]:
    """Return the reference on one thread and on all, or the reason why there is none."""
    try:
        return [Peer(threads, recipe, params) for threads in THREADS], ""
    except ImportError as error:
        return [], f"not installed: {error.name}; pip install 'simlab[peers]'"


def trl_steps(recipe: Recipe, params: Params) -> dict[str, float]:
    """Milliseconds of the fastest step of TRL's trainer by thread count; nothing if TRL is not installed.

    TRL runs in its own process, so its steps are timed after those of simlab, not interleaved with them.
    """
    python = find_interpreter("trl")
    if not python.exists():
        return {}
    prompts = np.asarray(recipe.task.prompts(jax.random.key(2), 64))
    milliseconds = {}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = save_checkpoint(Path(folder, "checkpoint"), recipe.model, params)
        settings = {
            "checkpoint": str(checkpoint),
            "texts": ["".join(CHARACTERS[token] for token in prompt) for prompt in prompts],
            "prompts": recipe.prompts_per_step,
            "group_size": recipe.group_size,
            "minibatches": recipe.minibatches,
            "response_length": int(recipe.task.response_length),
            "steps": 12,
        }
        for threads in THREADS:
            file = Path(folder, "settings.json")
            file.write_text(json.dumps(settings | {"threads": threads}))
            script = Path(__file__).with_name("step_speed_trl.py")
            done = subprocess.run([python, script, file], capture_output=True, text=True, check=True)
            milliseconds[name_peer("trl", threads)] = 1e3 * min(json.loads(done.stdout.splitlines()[-1]))
    return milliseconds


def stage_rows(cases: Cases, ms: np.ndarray, least: dict[str, float]) -> list[dict]:
    """Return rows by implementation and stage; `least` is the time of the products of a stage."""
    by_name: dict[str, dict[str, float]] = {"floor": least}
    for (name, stage), time_taken in zip(cases, ms, strict=True):
        by_name.setdefault(name, {})[stage] = float(time_taken)
    for times in by_name.values():
        times.setdefault("updates", times["step"] - times["rollout"] - times["score"])
    return [
        _row(name, stage, times[stage], times["step"], least)
        for name, times in by_name.items()
        for stage in least
    ]


def _row(name: str, stage: str, ms: float, step_ms: float, least: dict[str, float]) -> dict:
    rates = {"ms": ms, "floors": ms / least[stage], "steps_per_s": 1e3 / step_ms}
    return {"implementation": name, "stage": stage, **rates}


def ratios(rows: list[dict]) -> dict[str, float]:
    """Return the ratios of `LIMITS`."""
    ms = {(row["implementation"], row["stage"]): row["ms"] for row in rows}
    step = ms["emulated", "step"]
    ratios = {
        "step / floor": step / ms["floor", "step"],
        "rollout / floor": ms["emulated", "rollout"] / ms["floor", "rollout"],
        "emulated / float32": step / ms["float32", "step"],
    }
    for peer in ("pytorch", "trl"):
        times = [t for (name, stage), t in ms.items() if name.startswith(peer) and stage == "step"]
        if times:
            ratios[f"{peer} / emulated"] = min(times) / step
    return ratios


def run(run: ExperimentContext) -> None:
    (seed,) = run.seeds([0])
    rounds = 2 if run.smoke else 40
    names = ("float32", "emulated") if run.smoke else tuple(VARIANTS)
    recipe = recipe_of(VARIANTS["emulated"][0], run.smoke)
    params = init_params(jax.random.key(seed), recipe.model)
    run.configure(variants=VARIANTS, limits=LIMITS, rounds=rounds, model=asdict(recipe.model))
    cases: Cases = {}
    for name in run.track(names, "compile"):
        cases |= simlab_cases(name, recipe_of(VARIANTS[name][0], run.smoke), params)
    available, absent = ([], "not part of a smoke run") if run.smoke else peers(recipe, params)
    for peer in available:
        cases |= peer.cases()
    stages = step_floor.by_stage(recipe, recipe.task.prompts(jax.random.key(0), 1).shape[1])
    products = list(dict.fromkeys(product for counts in stages.values() for product in counts))
    calls = [*cases.values(), *map(timed_call, products)]
    ms = 1e3 * interleave(run, calls, time_call, rounds, seed).min(axis=0)
    one = dict(zip(products, ms[len(cases) :] / SIDE_BY_SIDE, strict=True))
    least = {stage: float(sum(one[p] * n for p, n in counts.items())) for stage, counts in stages.items()}
    rows = stage_rows(cases, ms[: len(cases)], least)
    for name, step in ({} if run.smoke else trl_steps(recipe, params)).items():
        rows.append(_row(name, "step", step, step, least))
    run.table("stages", rows)
    agreed = [row for peer in available for row in peer.agreement(params)]
    run.table("engines", measure_engines(run))
    with run.phase("machine"):
        run.table("machine", measure_machine(run.smoke, bool(available)))
    run.table("agreement", agreed or [{"quantity": absent, "difference": np.nan, "bound": np.nan}])
    for name, ratio in ratios(rows).items():
        bound = "at least" if name.startswith(("pytorch", "trl")) else "at most"
        run.report(f"{name}: {ratio:.2f} ({bound} {LIMITS[name]} wanted)")
    wrong = [row["quantity"] for row in agreed if not row["difference"] <= row["bound"]]
    if wrong:
        raise RuntimeError(f"the reference computes something else: {'; '.join(wrong)}")


EXPERIMENT = Experiment(
    name="bench_step",
    question="How fast is one training step, against its products, the same step in PyTorch, and TRL's?",
    decision_rule="Fast enough if, in one run (least times), the step of the flagship's recipe under "
    f"f32/fp8-s4-truncated takes at most {LIMITS['step / floor']} times its arithmetic floor and its "
    f"rollout {LIMITS['rollout / floor']} times, the step at most {LIMITS['emulated / float32']} times that "
    f"of f32/f32, compiled PyTorch at least {LIMITS['pytorch / emulated']} times as long, on its best "
    "number of threads and with log-probabilities and gradients equal to ours within the table's bounds, and "
    f"TRL's GRPOTrainer in float32 at least {LIMITS['trl / emulated']} times as long.",
    run=run,
    minutes=25.0,
)
