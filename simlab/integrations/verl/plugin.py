"""Register all parts of the plug-in when verl imports this module."""

# pyright: reportMissingImports=false

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps

import torch
from torch import Tensor
from verl.trainer.ppo import core_algos, rollout_corr_helper

from simlab.core.json_value import Json
from simlab.integrations.verl.dump import (
    number_data_proto,
    number_queue,
    read_data_proto,
    read_queue,
    wrap_update_actor,
)
from simlab.integrations.verl.is_weights import wrap_rollout_correction
from simlab.integrations.verl.learning_rate import STEP_SUMS, wrap_lr_scheduler
from simlab.integrations.verl.losses import ESTIMATORS, LOSSES, Loss, batch_of, terms
from simlab.integrations.verl.settings import Settings, read_settings
from simlab.integrations.verl.updates import wrap_train_batch

PREFIX = "simlab_"


def build_policy_loss(loss: Loss, settings: Settings) -> Callable[..., tuple[Tensor, dict[str, float]]]:
    """Return `loss` with the signature of a verl policy loss."""

    def compute(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Json = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        batch = batch_of(
            old_log_prob, log_prob, advantages, response_mask, config, rollout_is_weights, settings
        )
        chosen = replace(batch, mask=loss.token_mask(batch))
        aggregate = partial(
            core_algos.agg_loss, loss_mask=chosen.mask.to(response_mask.dtype), **config.global_batch_info
        )
        value = aggregate(loss_mat=terms(loss, chosen), loss_agg_mode=loss_agg_mode)
        if loss.penalty is not None:
            gaps = torch.where(chosen.mask, loss.penalty(chosen), 0.0)
            penalty = aggregate(loss_mat=gaps, loss_agg_mode="token-mean")
            value = value + settings.rollout_kl_coefficient * penalty
        log_ratio = (batch.new - batch.old).detach()[batch.mask]
        kl = -log_ratio.mean().item() if len(log_ratio) else 0.0
        return value, {"actor/ppo_kl": kl}

    return compute


def record_micro_batches(loss: Callable[..., object]) -> Callable[..., object]:
    """Wrap a policy loss: add its micro-batches to `STEP_SUMS`, for the learning rate."""

    @wraps(loss)
    def compute(*positional: Json, **named: Json) -> object:
        names = ("old_log_prob", "log_prob", "advantages", "response_mask", "loss_agg_mode", "config")
        arguments = dict(zip((*names, "rollout_is_weights"), positional, strict=False)) | named
        STEP_SUMS.add(arguments["response_mask"], arguments.get("rollout_is_weights"))
        return loss(*positional, **named)

    return compute


def register(settings: Settings) -> None:
    """Register losses and corrections; patch the trainer only if the settings need it."""
    for name, loss in LOSSES.items():
        core_algos.register_policy_loss(PREFIX + name)(build_policy_loss(loss, settings))
    for name, estimator in ESTIMATORS.items():
        core_algos.register_adv_est(PREFIX + name)(estimator)
    if not settings.otb_zero_tail:
        name = "optimal_token_baseline"
        full_tail = partial(core_algos.get_adv_estimator_fn(name), handle_zero_tail=False)
        core_algos.ADV_ESTIMATOR_REGISTRY[name] = full_tail
    rollout_corr_helper.compute_rollout_correction_and_add_to_batch = wrap_rollout_correction(
        rollout_corr_helper.compute_rollout_correction_and_add_to_batch, settings
    )
    if settings.schedule is not None:
        _patch_learning_rate(settings)
    if settings.dump is not None:
        _patch_trainers(settings.dump)


def _patch_learning_rate(settings: Settings) -> None:
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

    for name, loss in list(core_algos.POLICY_LOSS_REGISTRY.items()):
        core_algos.POLICY_LOSS_REGISTRY[name] = record_micro_batches(loss)
    FSDPEngine._build_lr_scheduler = wrap_lr_scheduler(FSDPEngine._build_lr_scheduler, settings)


def _patch_trainers(folder: str) -> None:
    from verl.trainer.ppo import ray_trainer
    from verl.workers.engine.base import BaseEngine

    BaseEngine.train_batch = wrap_train_batch(BaseEngine.train_batch, folder)
    legacy = ray_trainer.RayPPOTrainer
    legacy._update_actor = wrap_update_actor(legacy._update_actor, read_data_proto, number_data_proto, folder)
    try:
        from verl.trainer.ppo.v1 import trainer_base
    except ImportError:
        # Without the transfer queue only the legacy trainer runs.
        return
    current = trainer_base.PPOTrainer
    current._update_actor = wrap_update_actor(current._update_actor, read_queue, number_queue, folder)


try:
    register(read_settings())
except Exception as error:
    # verl does not report a failing plug-in.
    print(f"simlab: the verl plug-in failed to load: {error}", file=sys.stderr)
    raise
