"""Runs inside verl's environment: one step of verl's trainer and worker, as the plug-in has patched them.

Verl's own are the trainer's `_update_actor`, the worker's minibatches, the engine's train_batch, dynamic
micro-batches and the loss; the model is a table of bigrams, and the transfer queue a dictionary.
"""

# pyright: reportMissingImports=false
import sys
from types import SimpleNamespace

import torch
import torch.distributed
from omegaconf import OmegaConf
from tensordict import TensorDict

VOCABULARY, SEQUENCES, MINIBATCH = 11, 64, 16


class BigramEngine:
    """Log-probabilities from a table; `wobble` shifts those of each micro-batch, as kernels may."""

    def __init__(self, wobble):
        """Begin with random logits."""
        self.table = torch.nn.Parameter(torch.randn(VOCABULARY, VOCABULARY))
        self.optimizer = torch.optim.SGD([self.table], lr=20.0)
        self.wobble, self.before = wobble, []

    def score(self, ids):
        """Log-probability of the token after each, 0 at the last: verl shifts by one."""
        logps = torch.log_softmax(self.table, 1)[ids[:-1], ids[1:]]
        return torch.cat([logps, torch.zeros(1)])

    def optimizer_zero_grad(self):
        """Verl calls this before an update."""
        self.before.append(self.table.detach().clone())
        self.optimizer.zero_grad()

    def optimizer_step(self):
        """Verl calls this after it, for the norm."""
        self.optimizer.step()
        return 1.0

    def forward_backward_batch(self, data, loss_function, forward_only=False):
        """What verl's engines do, with their micro-batches."""
        from verl.utils import tensordict_utils as tu
        from verl.workers.engine.utils import postprocess_batch_func, prepare_micro_batches

        assert not forward_only
        tu.assign_non_tensor(
            data,
            batch_num_tokens=int(data["response_mask"].values().sum()),
            dp_size=1,
            use_dynamic_bsz=True,
            max_token_len_per_gpu=24,
        )
        micro_batches, indices = prepare_micro_batches(data, dp_group=None)
        outputs = []
        for number, batch in enumerate(micro_batches):
            logps = [self.score(ids) + self.wobble * number for ids in batch["input_ids"].unbind()]
            output = {"log_probs": torch.nested.as_nested_tensor(logps, layout=torch.jagged)}
            loss, metrics = loss_function(model_output=output, data=batch, dp_group=None)
            loss.backward()
            outputs.append({"loss": loss.item(), "metrics": metrics})
        return postprocess_batch_func(outputs, indices, data)

    def is_mp_src_rank_with_outputs(self):
        """Of the one rank there is."""
        return True

    def get_data_parallel_size(self):
        """One."""
        return 1

    def get_data_parallel_rank(self):
        """The first."""
        return 0

    def get_data_parallel_group(self):
        """All."""
        return

    def train_mode(self, **_):
        """Nothing to prepare."""
        return torch.enable_grad()


class Queue:
    """A transfer queue in this process: fields of all keys."""

    def __init__(self, keys, fields):
        """Hold `fields` of `keys`."""
        self.keys, self.fields = keys, fields

    def kv_batch_get(self, *, keys, partition_id, select_fields):
        """Return those of `select_fields` that are there."""
        from verl.utils import tensordict_utils as tu

        del partition_id
        rows = torch.tensor([self.keys.index(key) for key in keys])
        known = [name for name in select_fields if name in self.fields]
        return tu.index_select_tensor_dict(self.fields.select(*known), rows)

    def kv_batch_put(self, *, keys, partition_id, fields):
        """Add fields."""
        del partition_id
        assert keys == self.keys
        self.fields.update(fields)


def jagged(rows):
    """Rows of different lengths, as the transfer queue keeps them."""
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def sampled(engine):
    """Prompts and responses of random tokens, scored by the engine before any update."""
    lengths = torch.randint(3, 9, (SEQUENCES,)).tolist()
    prompts = [torch.randint(0, VOCABULARY, (1 + index % 3,)) for index in range(SEQUENCES)]
    responses = [torch.randint(0, VOCABULARY, (length,)) for length in lengths]
    whole = [torch.cat(pair) for pair in zip(prompts, responses, strict=True)]
    old = [
        engine.score(ids).detach()[len(prompt) - 1 : -1] for ids, prompt in zip(whole, prompts, strict=True)
    ]
    signs = [1.0 if index % 2 else -1.0 for index in range(SEQUENCES)]
    masks = [torch.ones(length, dtype=torch.int64) for length in lengths]
    # One token of a tool at the end: masked, and still part of the response.
    masks[0][-1] = 0
    fields = {
        "prompts": jagged(prompts),
        "responses": jagged(responses),
        "input_ids": jagged(whole),
        "loss_mask": jagged(masks),
        "response_mask": jagged(masks),
        "old_log_probs": jagged(old),
        "rollout_log_probs": jagged([row - 0.25 for row in old]),
        "advantages": jagged([torch.full((n,), sign) for n, sign in zip(lengths, signs, strict=True)]),
        "rm_scores": jagged([torch.full((n,), 0.5) for n in lengths]),
        # Of two layers, two experts each; all are the token's position.
        "routed_experts": jagged([torch.arange(len(ids))[:, None, None].expand(-1, 2, 2) for ids in whole]),
    }
    return TensorDict(fields, batch_size=SEQUENCES), whole


def one_step(wobble, local=0, bypass=False):
    """Update the actor once through verl; return the table before each minibatch, and the sequences.

    `local`: which update of the actor this is since theta_old was taken.
    """
    from verl.trainer.ppo.v1 import trainer_base
    from verl.workers.config.actor import ActorConfig, PolicyLossConfig
    from verl.workers.engine.base import BaseEngine
    from verl.workers.engine_workers import TrainingWorker
    from verl.workers.utils.losses import ppo_loss

    torch.manual_seed(3)
    engine = type("Engine", (BigramEngine, BaseEngine), {})(wobble)
    fields, whole = sampled(engine)
    keys = [f"key-{index}" for index in range(SEQUENCES)]
    queue = Queue(keys, fields)
    for name in ("kv_batch_get", "kv_batch_put"):
        setattr(sys.modules["transfer_queue"], name, getattr(queue, name))
    config = ActorConfig(
        strategy="fsdp", rollout_n=2, ppo_micro_batch_size_per_gpu=1, policy_loss=PolicyLossConfig()
    )

    def loss(model_output, data, dp_group=None):
        return ppo_loss(config, model_output, data, dp_group)

    def train_batch(data):
        found = engine.train_batch(data, loss_function=loss)
        return TensorDict({}, batch_size=[]).set_non_tensor("metrics", {"loss": sum(found["loss"])})

    worker = SimpleNamespace(engine=engine, train_batch=train_batch, profiler=SimpleNamespace(step=int))

    def update_actor(batch):
        from verl.utils import tensordict_utils as tu

        data = queue.fields.clone()
        tu.assign_non_tensor(data, **batch.extra_info)
        TrainingWorker.train_mini_batch(worker, data)
        return {"metrics": {"mfu": [0.0]}}

    trainer = SimpleNamespace(
        global_steps=7,
        local_trigger_step=local,
        actor_rollout_wg=SimpleNamespace(update_actor=update_actor),
        config=OmegaConf.create(
            {
                "algorithm": {"rollout_correction": {"bypass_mode": bypass}},
                "actor_rollout_ref": {
                    "actor": {
                        "ppo_mini_batch_size": MINIBATCH // 2,
                        "calculate_entropy": False,
                        "entropy_coeff": 0.0,
                        "ppo_epochs": 2,
                        "data_loader_seed": 1,
                        "shuffle": True,
                        "megatron": {"router_replay": {"mode": "R3"}},
                    },
                    "rollout": {"n": 2, "temperature": 1.0},
                },
            }
        ),
    )
    tags = [{"min_global_steps": 6}] * SEQUENCES
    batch = SimpleNamespace(keys=keys, tags=tags, partition_id="train", extra_info={})
    trainer_base.PPOTrainer._update_actor(trainer, batch, {})
    return [table.tolist() for table in engine.before], [ids.tolist() for ids in whole]
