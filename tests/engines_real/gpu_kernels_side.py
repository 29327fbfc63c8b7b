"""Compile rollout and learn of the flagship's shape for an H200 that is not there; print JSON.

It has the kernels, and the bytes per run of a batch beside those that simlab expects.

Arguments are an inference engine and a folder for XLA's dumps. Runs in the environment `cuda`, on a CPU.
"""

import os
import sys

os.environ |= {
    "JAX_PLATFORMS": "cpu",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "XLA_FLAGS": f"--xla_dump_to={sys.argv[2]} --xla_dump_hlo_module_re=_leaves",
}

import json
import re
from collections import Counter
from pathlib import Path
from unittest import mock

import jax
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

from experiments.regimes import BASE
from simlab.core.backend import compiler_options
from simlab.sweeps import compilation
from simlab.sweeps.batch_size import bytes_per_run
from simlab.sweeps.config import recipe_of, run_config
from simlab.sweeps.program import stack_shapes, swept_recipe

H200 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000
  l2_cache_size: 62914560
  clock_rate_ghz: 1.98
  device_memory_size: 150754820096
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  driver_version: "12.9.0"
  compile_time_toolkit_version: "12.9.0"
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 28 }
runtime_version { major: 12 minor: 9 }
device_description_str: "NVIDIA H200"
"""
# Operations of the optimized program that start no kernel.
FREE = {
    "after-all",
    "bitcast",
    "call",
    "conditional",
    "constant",
    "get-tuple-element",
    "parameter",
    "tuple",
    "while",
}
RUNS_PER_BATCH = 64


def read_computations(text: str) -> dict[str, list[str]]:
    """Return the lines of every computation of an optimized program, by name."""
    computations: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        header = re.match(r"(?:ENTRY )?%?([\w.\-]+) .*->.*\{$", line)
        if header:
            name = header.group(1)
            computations[name] = []
        elif " = " in line and name:
            computations[name].append(line)
    return computations


def count_kernels(computations: dict[str, list[str]], name: str) -> Counter[str]:
    """Count operations that start kernels in a computation and in those that it calls, loops apart."""
    counts: Counter[str] = Counter()
    for line in computations[name]:
        found = re.search(r"= (?:\(.*?\)|\S+) ([a-z][\w\-]*)\(", line)
        operation = found.group(1) if found else ""
        if operation and operation not in FREE:
            counts[operation] += 1
        for called in re.findall(r"(?:to_apply|true_computation|false_computation)=%?([\w.\-]+)", line):
            if operation in ("call", "conditional"):
                counts += count_kernels(computations, called)
    return counts


def loops(computations: dict[str, list[str]]) -> list[dict[str, int]]:
    """Return the kernels of every loop body, the largest first."""
    bodies = [
        match
        for lines in computations.values()
        for line in lines
        for match in re.findall(r"body=%?([\w.\-]+)", line)
    ]
    counted = [dict(count_kernels(computations, body)) for body in dict.fromkeys(bodies)]
    return sorted(counted, key=lambda counts: -sum(counts.values()))


def count_scatters(computations: dict[str, list[str]]) -> int:
    """Count scatters, which may add with atomics in an order that differs from call to call."""
    return sum(" scatter(" in line for lines in computations.values() for line in lines)


def largest_body(text: str) -> list[str]:
    """Return the kinds of what the host starts in an iteration of the largest loop of a thunk sequence."""
    bodies: list[list[str]] = []
    indent = -1
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip())
        if line.strip() == "body:":
            bodies.append([])
            indent = depth + 2
        elif depth < indent:
            indent = -1
        elif indent >= 0:
            bodies[-1].append(line)
    largest = max(bodies, key=len)
    outermost = min(len(line) - len(line.lstrip()) for line in largest)
    return [line.split()[1] for line in largest if line[outermost] != " "]


def host_starts(folder: str, name: str) -> list[str]:
    """Return what `largest_body` does of the compiled function `name`, which XLA dumped in a folder."""
    (dump,) = Path(folder).glob(f"*jit_{name}.thunk_sequence_after_thunk_passes.txt")
    return largest_body(dump.read_text())


def compile_for_gpu(function, arguments) -> jax.stages.Compiled:
    """Return `function` compiled for one H200."""
    topology = topologies.get_topology_desc(platform="cuda", target_config=H200, topology="1x1x1")
    sharding = NamedSharding(topologies.make_mesh(topology, (1,), ("devices",)), PartitionSpec())
    placed = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), arguments)
    with mock.patch.object(jax, "default_backend", return_value="gpu"):
        lowered = jax.jit(function, compiler_options=compiler_options()).lower(*placed)
    return lowered.compile()


def count_bytes(compiled: jax.stages.Compiled) -> int:
    """Return the bytes of arguments, results and temporary arrays of a compiled function."""
    memory = compiled.memory_analysis()
    return memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes


def main(engine: str, folder: str) -> None:
    """Print kernels of the loops of `sample` and `learn`, and what starts them, under an inference engine."""
    changes = {"engines": f"f32/{engine}", "objective": "grpo", "warm_start": None, "steps": 10, "seed": 0}
    config = run_config({**BASE, **changes})
    recipe, state = stack_shapes(swept_recipe(config), RUNS_PER_BATCH)
    sampling = compilation.sampling_recipe(recipe)
    arguments = sampling, compilation._sampled_part(state)
    shapes = jax.eval_shape(compilation._sample_leaves, *arguments)
    trajectory = jax.tree.unflatten(compilation._trajectory_tree(sampling), shapes)
    programs = {"sample": (compilation._sample_leaves, arguments)}
    if engine == "f32":
        programs["learn"] = (
            compilation._learn_leaves,
            (compilation.learning_recipe(recipe), state, trajectory),
        )
    compiled = {name: compile_for_gpu(*each) for name, each in programs.items()}
    computations = {name: read_computations(each.as_text()) for name, each in compiled.items()}
    kernels = {name: loops(each) for name, each in computations.items()}
    scatters = {name: count_scatters(each) for name, each in computations.items()}
    memory = {name: count_bytes(each) / RUNS_PER_BATCH for name, each in compiled.items()}
    memory["expected"] = bytes_per_run(recipe_of(config))
    starts = {name: host_starts(folder, each[0].__name__) for name, each in programs.items()}
    print(json.dumps({"kernels": kernels, "scatters": scatters, "starts": starts, "memory": memory}))


if __name__ == "__main__":
    main(*sys.argv[1:])
