"""Runs inside verl's environment: the patches of the plug-in on verl's own engine and trainers.

Packages that only a training machine has are stood in for by empty ones, after verl itself is imported.
"""

# pyright: reportMissingImports=false
import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed
import verl  # noqa: F401 - loads the plug-in through its entry point
from tensordict import NonTensorStack, TensorDict
from verl_update_side import jagged, one_step

from simlab.integrations.verl import plugin
from simlab.integrations.verl.dump import read_queue
from simlab.integrations.verl.settings import Settings

ABSENT = (
    "PIL",
    "accelerate",
    "aiohttp",
    "cachetools",
    "datasets",
    "dill",
    "fastapi",
    "numba",
    "pandas",
    "peft",
    "psutil",
    "pybase64",
    "pylatexenc",
    "qwen_vl_utils",
    "starlette",
    "tensorboard",
    "torchdata",
    "torchvision",
    "transfer_queue",
    "uvicorn",
    "zmq",
)


class Anything(type):
    """A class whose every attribute is another one."""

    def __getattr__(cls, name):
        """Return a new class of that name."""
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {})


class StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Find `ABSENT` packages and their modules, all empty."""

    def find_spec(self, name, path=None, target=None):
        """Return a spec for the names of `ABSENT` alone."""
        del path, target
        known = name.split(".")[0] in ABSENT
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec):
        """Return a module with any attribute."""
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: getattr(Anything("Top", (), {}), name)
        return module

    def exec_module(self, module):
        """Nothing to run."""


def queued():
    """What one waits for a step: two samples and a filler."""
    fields = {
        "old_log_probs": [[-1.0, -2.0], [-3.0]],
        "rollout_log_probs": [[-1.5, -2.0], [-3.5]],
        "responses": [[5, 6], [7]],
        "response_mask": [[1, 1], [1]],
        "rm_scores": [[0.0, 1.0], [0.0]],
        "advantages": [[0.5, 0.5], [-0.5]],
    }
    fields = {name: jagged(map(torch.tensor, rows)) for name, rows in fields.items()}
    data = TensorDict(fields, batch_size=2)
    data["uid"] = NonTensorStack("a", "b")
    sys.modules["transfer_queue"].kv_batch_get = lambda **_: data
    tags = [{"min_global_steps": 3}, {"min_global_steps": 4}, {"is_padding": True}]
    batch = SimpleNamespace(keys=["k0", "k1", "filler"], tags=tags, partition_id="train")
    actor = {"megatron": {}}
    config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(actor=actor))
    rows = read_queue(SimpleNamespace(global_steps=6, config=config), batch)
    return [json.loads(json.dumps(row, default=lambda array: array.tolist())) for row in rows]


def main():
    """Patch, call what was patched, and write what came of it."""
    sys.meta_path.append(StandIn())
    plugin._patch_learning_rate(Settings(schedule="length-triggered"))
    from verl.workers.config import FSDPOptimizerConfig
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    config = FSDPOptimizerConfig(lr=1.0, total_training_steps=10, lr_warmup_steps=2)
    engine = SimpleNamespace(optimizer_config=config, rank=1)
    engine.lr_scheduler = FSDPEngine._build_lr_scheduler(engine, optimizer)
    rates = [FSDPEngine.lr_scheduler_step(engine) for _ in range(3)]
    out = Path(sys.argv[1])
    plugin._patch_trainers(str(out / "dump"))
    from verl.trainer.ppo import ray_trainer
    from verl.trainer.ppo.v1 import trainer_base

    found = {
        "rates": rates,
        "patched": [
            trainer._update_actor.__qualname__
            for trainer in (ray_trainer.RayPPOTrainer, trainer_base.PPOTrainer)
        ],
        "rows": queued(),
    }
    torch.distributed.init_process_group("gloo", init_method=f"file://{out}/rendezvous", rank=0, world_size=1)
    found["tables"], found["sequences"] = one_step(wobble=0.0)
    os.rename(out / "dump", out / "agreeing")
    one_step(wobble=0.01)
    os.rename(out / "dump", out / "wobbling")
    one_step(wobble=0.0, local=1)
    one_step(wobble=0.0, bypass=True)
    torch.distributed.destroy_process_group()
    (out / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
