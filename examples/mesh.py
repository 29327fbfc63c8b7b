"""Train a small policy on a mesh of devices; `docs/scale.md` says what the axes are.

Eight virtual devices of one CPU:

    python examples/mesh.py --virtual 8 --fsdp 2 --expert 2 --tensor 2

Two processes, here both on this machine (elsewhere: the name of the first host, and any free port):

    python examples/mesh.py --fsdp 2 --coordinator localhost:9911 --processes 2 --process 0 &
    python examples/mesh.py --fsdp 2 --coordinator localhost:9911 --processes 2 --process 1
"""

import argparse
import json
from dataclasses import replace

import jax

from simlab.engines import find_pair
from simlab.models import MODELS, init_params
from simlab.objectives import named
from simlab.tasks.sequences import Sorting
from simlab.training.distributed import connect
from simlab.training.mesh import born, bytes_per_device, make_mesh, sharded_step
from simlab.training.recipe import Recipe, TrainState, initial_state


def arguments() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for axis in ("data", "fsdp", "expert", "tensor"):
        parser.add_argument(f"--{axis}", type=int, default=1, help="size of this axis of the mesh")
    parser.add_argument("--virtual", type=int, default=1, help="virtual devices of this process on a CPU")
    parser.add_argument("--coordinator", help="host:port of process 0")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--process", type=int, help="number of this one, from 0")
    parser.add_argument("--model", default="tiny-moe", choices=MODELS)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--pair", default="f32/bf16", help="training and inference engine")
    parser.add_argument("--steps", type=int, default=2)
    return parser.parse_args()


def main() -> None:
    """Make the steps; the first process prints the numbers of each."""
    asked = arguments()
    jax.config.update("jax_num_cpu_devices", asked.virtual)
    if asked.processes:
        connect(asked.coordinator, asked.processes, asked.process)
    mesh = make_mesh(asked.data, asked.fsdp, asked.expert, asked.tensor)
    recipe = Recipe(
        engines=find_pair(asked.pair),
        objective=named("grpo"),
        task=Sorting(difficulty=3, train_size=64, held_out_size=8),
        model=replace(MODELS[asked.model], num_hidden_layers=asked.layers),
        # Nothing is rewarded yet: without it the first steps would have no gradient.
        extra_terms={"entropy": 0.01},
        prompts=4,
        group_size=4,
        minibatches=2,
    )

    def first() -> TrainState:
        return initial_state(recipe, init_params(jax.random.key(0), recipe.model), jax.random.key(1))

    state = born(first, mesh)
    step = sharded_step(mesh, state)
    for number in range(asked.steps):
        state, metrics = step(recipe, state)
        scalars = {name: float(value) for name, value in metrics.items() if value.ndim == 0}
        if jax.process_index() == 0:
            print(json.dumps({"step": number, "bytes": bytes_per_device(state), **scalars}))


if __name__ == "__main__":
    main()
