"""Measure compilation, step and memory of larger models and longer responses, each in its own process."""

import itertools
import os
import sys
import tempfile

from experiments.benchmarks.timing import run_script
from simlab.core.json_value import Json
from simlab.studies.experiment import Experiment, ExperimentContext

CASES: dict[str, dict[str, Json]] = {
    "long responses": {"model": "small-dense", "task": {"name": "chain", "difficulty": 255}},
    "large model": {
        "model": {
            "name": "small-dense",
            "hidden_size": 256,
            "num_hidden_layers": 8,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "intermediate_size": 640,
        },
        "task": {"name": "chain", "difficulty": 64},
    },
}
"""0.6 million parameters at 256 tokens per response, 5.5 million at 65."""
SMOKE = {"model": {"name": "small-dense", "hidden_size": 32}, "task": {"name": "chain", "difficulty": 7}}
ENGINES = ("f32/f32", "f32/bf16")
BASE = {"objective": "grpo", "prompts_per_step": 4, "group_size": 8, "minibatches": 2}
STEPS, WARM_UP = 22, 2
FLAT_MB = 16.0
"""Largest allowed growth of the resident memory from the end of the warm-up to the last step. Free memory
is returned to the system before each measurement, because the memory of the allocator varies by 200 MB."""
SCRIPT = """
import gc, json, resource, sys, time
from functools import partial
import jax
from simlab.models.parameters import init_params
from simlab.sweeps.compilation import compile_batch
from simlab.core.backend import compute_on_one_thread
from simlab.sweeps.memory import resident_bytes, return_free_memory
from simlab.sweeps.config import run_config
from simlab.sweeps.program import BatchedRun, stack_members, swept_recipe
from simlab.training.loop import train
config, steps, warm_up = json.loads(sys.argv[1])
compute_on_one_thread()
config = run_config(config)
def measure(done):
    clocks = time.perf_counter(), time.process_time()
    gc.collect()
    return_free_memory()
    rows.append((*clocks, resident_bytes() / 1e6))
recipe = swept_recipe(config)
params = init_params(jax.random.key(0), recipe.model)
recipe, state = stack_members([BatchedRun(recipe, params, 0)], 1)
clocks = [time.perf_counter(), time.process_time()]
program = compile_batch(recipe, state)
compiled = [time.perf_counter() - clocks[0], time.process_time() - clocks[1]]
peak, rows = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, []
train(recipe, state, steps, [measure], chunk=1, axes=(0, 0), advance=partial(program.advance, 1))
first, last = rows[warm_up - 1], rows[-1]
count = steps - warm_up
print(json.dumps({
    "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
    "compile_seconds": compiled[0], "compile_cpu_seconds": compiled[1], "compile_peak_mb": peak,
    "seconds": (last[0] - first[0]) / count, "cpu_seconds": (last[1] - first[1]) / count,
    "resident_mb": last[2], "growth_mb": last[2] - first[2],
}))
"""


def run(run: ExperimentContext) -> None:
    if not sys.platform.startswith("linux"):
        raise SystemExit("bench_size reads /proc/self/statm, which only Linux has")
    cases = {"smoke": SMOKE} if run.smoke else CASES
    steps, warm_up = (3, 1) if run.smoke else (STEPS, WARM_UP)
    run.configure(base=BASE, cases=cases, steps=steps, warm_up=warm_up, load=list(os.getloadavg()))
    engine_pairs, checkpointing = (ENGINES[:1], (True,)) if run.smoke else (ENGINES, (False, True))
    work = list(itertools.product(cases, engine_pairs, checkpointing))
    rows = []
    for name, engines, is_checkpointed in run.track(work, "cases"):
        form = {"engines": engines, "gradient_checkpointing": is_checkpointed, "steps": steps}
        with tempfile.TemporaryDirectory() as cache:
            _, measured = run_script(SCRIPT, [BASE | cases[name] | form, steps, warm_up], cache)
        tokens = cases[name]["task"]["difficulty"] + 1
        rows.append({"case": name, "tokens": tokens, **form, **measured})
    run.table("sizes", rows)
    flat = sum(row["growth_mb"] <= FLAT_MB for row in rows)
    run.report(
        f"memory flat (at most {FLAT_MB:g} MB more after {steps - warm_up} steps): {flat} of {len(rows)}"
    )


EXPERIMENT = Experiment(
    name="bench_size",
    question="What do models of 5 million parameters and responses of 256 tokens cost on two cores?",
    decision_rule=f"They train if all steps finish, and memory is flat if it grows by at most {FLAT_MB:g} MB "
    f"over {STEPS - WARM_UP} steps.",
    run=run,
    minutes=14.0,
)
