"""Runs inside verl's environment: the plug-in's losses on random batches, a learning rate, a dump.

`python verl_plugin_side.py SEED OUT`; the plug-in is named by VERL_USE_EXTERNAL_MODULES.
"""

# pyright: reportMissingImports=false
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import verl  # noqa: F401 - loads the plug-in
from verl import DataProto
from verl.trainer.ppo import core_algos, rollout_corr_helper
from verl.workers.config.actor import ActorConfig, PolicyLossConfig

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from golden_batches import GROUP_SIZE, random_batch
from verl_goldens import NO_DUAL_CLIP, tensors

from simlab.integrations.verl import losses, plugin
from simlab.integrations.verl.dump import number_data_proto, read_data_proto, wrap_update_actor
from simlab.integrations.verl.learning_rate import StepSums, TriggeredScheduler
from simlab.integrations.verl.settings import Settings, read_settings

# For the size of the terms of verl's own.
PLAIN = {"vanilla": losses.LOSSES["grpo"], "gpg": losses.Loss(lambda batch: batch.new)}
GSPO_CLIP = (3e-4, 4e-4)
# Name -> loss mode, clip, aggregation, rollout_is, its threshold.
VARIANTS = {
    "grpo": ("simlab_grpo", (0.2, 0.2), "seq-mean-token-mean", None, 2.0),
    **{
        f"grpo+acrl {level}": (
            "simlab_grpo_acrl",
            (0.2, 0.2),
            "seq-mean-token-mean",
            f"acrl_{level}",
            2.0,
        )
        for level in ("sequence", "group", "batch")
    },
    "gspo+acrl": ("simlab_gspo_acrl", GSPO_CLIP, "seq-mean-token-mean", "acrl_group", 2.0),
    "grpo+geometric_tis": ("vanilla", (0.2, 0.2), "seq-mean-token-mean", "geometric", 2.0),
    "grpo+geometric_icepop": ("vanilla", (0.2, 0.2), "token-mean", "geometric", "0.5_5"),
    "grpo+opsm": ("simlab_grpo_opsm", (0.2, 0.2), "seq-mean-token-mean", None, 2.0),
    "gspo+opsm": ("simlab_gspo_opsm", GSPO_CLIP, "seq-mean-token-mean", None, 2.0),
    "reinforce": ("gpg", (0.2, 0.2), "seq-mean-token-sum", None, 2.0),
    "grpo_fix": ("simlab_grpo_fix", (0.2, 0.2), "seq-mean-token-sum", None, 2.0),
    "grpo_fix_weight": ("simlab_grpo_fix_weight", (0.2, 0.2), "seq-mean-token-sum", None, 2.0),
    "grpo_bias": ("simlab_grpo_bias", (0.2, 0.2), "seq-mean-token-mean", None, 2.0),
    **{
        name: (f"simlab_{name}", GSPO_CLIP, "seq-mean-token-mean", None, 2.0)
        for name in (
            "gspo",
            "gspo_bias",
            "dfpo_none",
            "dfpo_min",
            "dfpo_orth",
            "dfpo_posorth",
            "dfpo_rebalance",
            "dfpo_min_no_stop",
            "dfpo_scale",
        )
    },
    **{
        name: (f"simlab_{name}", (0.05, 0.05), "token-mean", "token", 1e10)
        for name in ("dppo_tv", "dppo_kl", "ipo", "kpop", "drpo", "vespo", "m2po", "ipo_rollout_kl")
    },
    "grpo_rollout_kl": ("simlab_grpo_rollout_kl", (0.2, 0.2), "seq-mean-token-mean", "token", 1e10),
    "grpo+vaco": ("simlab_grpo_vaco", (0.2, 0.2), "seq-mean-token-mean", "token", 1e10),
    "gspo+vaco": ("simlab_gspo_vaco", GSPO_CLIP, "seq-mean-token-mean", "token", 1e10),
    "grpo+kpop": ("vanilla", (0.2, 0.2), "seq-mean-token-mean", "kpop", 2.0),
    **{
        f"grpo+{name}": ("vanilla", (0.2, 0.2), "seq-mean-token-mean", None, 2.0)
        for name in ("kpop_mask", "m2_mask", "prob_diff", "prob_diff+geo_mask")
    },
    "luspo": ("simlab_gspo", (2e-3, 2.5e-3), "seq-mean-token-sum", None, 2.0),
    "dfpo_min+tis": ("simlab_dfpo_min", GSPO_CLIP, "seq-mean-token-mean", "token", 2.0),
}

# rollout_rs and rollout_rs_threshold of the variants that have them.
REJECTIONS = {
    "grpo+kpop_mask": ("kpop_mask", "0.1"),
    "grpo+m2_mask": ("m2_mask", "0.04"),
    "grpo+prob_diff": ("prob_diff", "-0.1_0.05"),
    "grpo+prob_diff+geo_mask": ("seq_mean_k1,prob_diff", "0.9_1.1,-0.1_0.05"),
}


def config_of(clip, size=GROUP_SIZE):
    """What verl's worker hands to a policy loss."""
    return ActorConfig(
        strategy="fsdp",
        rollout_n=size,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=PolicyLossConfig(),
        clip_ratio_low=clip[0],
        clip_ratio_high=clip[1],
        clip_ratio_c=NO_DUAL_CLIP,
    )


def proto_of(batch):
    """What verl's driver has after old_log_prob."""
    index = np.arange(len(batch["rewards"])) // GROUP_SIZE
    return DataProto.from_dict(
        tensors={
            "old_log_probs": batch["logp_train"],
            "rollout_log_probs": batch["logp_infer"],
            "response_mask": batch["mask"],
            "responses": batch["mask"].long() * 7,
            "token_level_scores": batch["token_rewards"],
        },
        non_tensors={"uid": np.array([f"prompt-{i}" for i in index], dtype=object)},
    )


def answer(name, batch):
    """-loss, its gradient, and the sum of its absolute terms, through verl's own calls."""
    mode, clip, aggregation, rollout_is, threshold = VARIANTS[name]
    proto = proto_of(batch)
    rule = {"rollout_is": rollout_is, "rollout_is_threshold": threshold}
    if name in REJECTIONS:
        rule["rollout_rs"], rule["rollout_rs_threshold"] = REJECTIONS[name]
    proto, _ = rollout_corr_helper.compute_rollout_correction_and_add_to_batch(proto, rule)
    weights = proto.batch["rollout_is_weights"] if rollout_is else None
    advantages, _ = core_algos.get_adv_estimator_fn("simlab_reward" if mode == "gpg" else "grpo")(
        token_level_rewards=batch["token_rewards"].clone(),
        response_mask=batch["mask"],
        index=proto.non_tensor_batch["uid"],
    )
    config, new = config_of(clip), batch["logp"].clone().requires_grad_()
    mask = proto.batch["response_mask"]
    arguments = (batch["logp_train"], new, advantages, mask)
    value, _ = core_algos.get_policy_loss_fn(mode)(*arguments, aggregation, config, weights)
    gradient = torch.autograd.grad(value, new)[0]
    own = PLAIN.get(mode) or losses.LOSSES[mode.removeprefix("simlab_")]
    record = losses.batch_of(*arguments, config, weights, read_settings())
    record = replace(record, mask=own.token_mask(record))
    magnitude = core_algos.agg_loss(losses.terms(own, record).abs(), record.mask.float(), aggregation)
    if own.penalty is not None:
        squares = torch.where(record.mask, own.penalty(record), 0.0)
        scale = record.settings.rollout_kl_coefficient
        magnitude = magnitude + scale * core_algos.agg_loss(squares, record.mask.float(), "token-mean")
    return -value.detach().numpy(), -gradient.numpy(), magnitude.detach().numpy()


def rates(lengths, weights):
    """Learning rates that a triggered scheduler gives on top of verl's constant one."""
    found = []
    for schedule in ("length-triggered", "mismatch-triggered"):
        settings = Settings(schedule=schedule, early=4, mismatch_early=4, cooldown=3, delay=0.4)
        from verl.utils.torch_functional import get_constant_schedule_with_warmup

        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        observed = StepSums()
        inner = get_constant_schedule_with_warmup(optimizer=optimizer, num_warmup_steps=0)
        scheduler, given = TriggeredScheduler(inner, settings, observed), []
        for length, size in zip(lengths, weights, strict=True):
            mask = torch.ones(2, int(length))
            observed.add(mask, mask * float(np.exp(size)))
            optimizer.step()
            scheduler.step()
            restored = TriggeredScheduler(inner, settings, observed)
            restored.load_state_dict(scheduler.state_dict())
            scheduler = restored
            given.append(optimizer.param_groups[0]["lr"])
        found.append(given)
    return np.array(found)


def dump(batch, folder):
    """Dump a batch as the patched trainer does."""
    proto = proto_of(batch)
    proto.batch["advantages"] = batch["mask"] * 0.5
    rows, tokens = batch["mask"].shape
    proto.batch["routed_experts"] = torch.arange(rows * (tokens + 3) * 2 * 2).reshape(rows, tokens + 3, 2, 2)
    actor = {"megatron": {"router_replay": {"mode": "R3"}}}
    trainer = SimpleNamespace(
        global_steps=5,
        config=SimpleNamespace(actor_rollout_ref=SimpleNamespace(actor=actor)),
    )
    updated = wrap_update_actor(lambda *_: "updated", read_data_proto, number_data_proto, str(folder))
    assert updated(trainer, proto) == "updated"


def main():
    """Write answers.npz, a dump, and a file of torch.save into OUT."""
    seed, out = int(sys.argv[1]), Path(sys.argv[2])
    assert set(plugin.LOSSES) <= {name.removeprefix("simlab_") for name in core_algos.POLICY_LOSS_REGISTRY}
    rng = np.random.default_rng(seed)
    drawn = {
        "moderate": random_batch(rng),
        "wide": random_batch(rng, far=12.0),
        "empty": random_batch(rng, empty=True),
    }
    found = {"names": np.array(list(VARIANTS))}
    for label, batch in drawn.items():
        torched = tensors(batch)
        rows = [answer(name, torched) for name in VARIANTS]
        columns = map(np.stack, zip(*rows, strict=True))
        found |= {f"{label}/{name}": values for name, values in batch.items()}
        found |= {
            f"{label}/{name}": values
            for name, values in zip(("value", "coefficients", "magnitude"), columns, strict=True)
        }
    torch.manual_seed(seed)
    zeros = torch.zeros(64, 512)
    record = losses.batch_of(zeros, zeros, zeros, zeros + 1, config_of((0.2, 0.2)), None, Settings())
    found["noise"] = losses.gaussian_noise(record).numpy()
    found["lengths"] = np.array([10] * 4 + [30] * 20)
    found["log_weights"] = np.array([0.1] * 4 + [0.5] * 20)
    found["rates"] = rates(found["lengths"], found["log_weights"])
    np.savez_compressed(out / "answers.npz", **found)
    dump(tensors(drawn["moderate"]), out / "dump")
    torched = tensors(drawn["moderate"])
    halves = [torch.arange(8).reshape(2, 4).t()[1:].bfloat16()]
    data = {"log_probs": list(torched["logp_train"]), "rollout_log_probs": list(torched["logp_infer"])}
    torch.save({"rollout_id": 3, "rank": 0, "rollout_data": data | {"other": halves}}, out / "3_0.pt")
    (out / "misfit.txt").write_text(advantages_of_strangers())
    plugin.register(Settings(otb_zero_tail=0.0))
    (out / "otb.txt").write_text(str(core_algos.get_adv_estimator_fn("optimal_token_baseline").keywords))


def advantages_of_strangers():
    """What a DFPO loss says when groups are not together."""
    four = torch.zeros(4, 2)
    advantages = torch.tensor([1.0, 1.0, -1.0, 0.5])[:, None].expand(4, 2)
    try:
        core_algos.get_policy_loss_fn("simlab_dfpo_min")(
            four, four, advantages, four + 1, "token-mean", config_of((0.2, 0.2))
        )
    except ValueError as error:
        return str(error)
    return "nothing"


if __name__ == "__main__":
    main()
