"""Train a small policy on a mesh of devices; `docs/scale.md` describes the axes.

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
from simlab.objectives import get_objective
from simlab.tasks.sequences import Sorting
from simlab.training.loop import Chunk, train
from simlab.training.mesh import bytes_per_device, compile_sharded, init_sharded, make_mesh
from simlab.training.recipe import Recipe, TrainState, initial_state


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for axis in ("data", "fsdp", "expert", "tensor"):
        parser.add_argument(f"--{axis}", type=int, default=1, help="size of this axis of the mesh")
    parser.add_argument("--virtual", type=int, default=1, help="virtual devices of this process on a CPU")
    parser.add_argument("--coordinator", help="host:port of process 0")
    parser.add_argument("--processes", type=int, help="number of processes")
    parser.add_argument("--process", type=int, help="index of this process, from 0")
    parser.add_argument("--model", default="tiny-moe", choices=MODELS)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--pair", default="f32/bf16", help="training and inference engine")
    parser.add_argument("--steps", type=int, default=2)
    return parser.parse_args()


def main() -> None:
    """Train; the first process prints the metrics of each step."""
    args = parse_arguments()
    jax.config.update("jax_num_cpu_devices", args.virtual)
    if args.processes:
        jax.distributed.initialize(args.coordinator, args.processes, args.process)
    mesh = make_mesh(args.data, args.fsdp, args.expert, args.tensor)
    recipe = Recipe(
        engines=find_pair(args.pair),
        objective=get_objective("grpo"),
        task=Sorting(difficulty=3, train_size=64, held_out_size=8),
        model=replace(MODELS[args.model], num_hidden_layers=args.layers),
        # An untrained policy gets no reward; without the entropy bonus the first steps have no gradient.
        entropy_coeff=0.01,
        prompts_per_step=4,
        group_size=4,
        minibatches=2,
    )

    def first() -> TrainState:
        return initial_state(recipe, init_params(jax.random.key(0), recipe.model), jax.random.key(1))

    def show(chunk: Chunk) -> None:
        scalars = {name: float(value[0]) for name, value in chunk.metrics.items() if value.ndim == 1}
        if jax.process_index() == 0:
            print(json.dumps({"step": chunk.step - 1, "bytes": bytes_per_device(chunk.state), **scalars}))

    state = init_sharded(first, mesh)
    train(recipe, state, args.steps, [show], chunk=1, advance=compile_sharded(1, state, mesh))


if __name__ == "__main__":
    main()
