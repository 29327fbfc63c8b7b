"""verl imports this module; importing it registers everything."""

# pyright: reportMissingImports=false

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

from verl.trainer.ppo import core_algos, rollout_corr_helper

from simlab.integrations.verl.dump import (
    dumping,
    number_data_proto,
    number_queue,
    read_data_proto,
    read_queue,
)
from simlab.integrations.verl.is_weights import with_lab_corrections
from simlab.integrations.verl.learning_rate import OBSERVED, with_trigger
from simlab.integrations.verl.losses import ESTIMATORS, LOSSES, Loss, batch_of, terms
from simlab.integrations.verl.settings import Settings, read_settings
from simlab.integrations.verl.updates import noting

PREFIX = "simlab_"


def policy_loss(loss: Loss, settings: Settings) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """Return `loss` with the signature of verl's policy losses."""

    def compute(
        old_log_prob: Any,
        log_prob: Any,
        advantages: Any,
        response_mask: Any,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Any = None,
    ) -> tuple[Any, dict[str, Any]]:
        batch = batch_of(
            old_log_prob, log_prob, advantages, response_mask, config, rollout_is_weights, settings
        )
        kept = replace(batch, mask=loss.kept(batch))
        value = core_algos.agg_loss(
            loss_mat=terms(loss, kept),
            loss_mask=kept.mask.to(response_mask.dtype),
            loss_agg_mode=loss_agg_mode,
            **config.global_batch_info,
        )
        log_ratio = (batch.new - batch.old).detach()[batch.mask]
        moved = -log_ratio.mean().item() if len(log_ratio) else 0.0
        return value, {"actor/ppo_kl": moved}

    return compute


def observed(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Let the learning rate see the micro-batches that a policy loss sees."""

    @wraps(loss)
    def seen(*positional: Any, **named: Any) -> Any:
        names = ("old_log_prob", "log_prob", "advantages", "response_mask", "loss_agg_mode", "config")
        given = dict(zip((*names, "rollout_is_weights"), positional, strict=False)) | named
        OBSERVED.note(given["response_mask"], given.get("rollout_is_weights"))
        return loss(*positional, **named)

    return seen


def register(settings: Settings) -> None:
    """Register the losses and corrections; patch the trainer only for what the settings ask for."""
    for name, loss in LOSSES.items():
        core_algos.register_policy_loss(PREFIX + name)(policy_loss(loss, settings))
    for name, estimator in ESTIMATORS.items():
        core_algos.register_adv_est(PREFIX + name)(estimator)
    rollout_corr_helper.compute_rollout_correction_and_add_to_batch = with_lab_corrections(
        rollout_corr_helper.compute_rollout_correction_and_add_to_batch, settings
    )
    if settings.schedule is not None:
        _patch_learning_rate(settings)
    if settings.dump is not None:
        _patch_trainers(settings.dump)


def _patch_learning_rate(settings: Settings) -> None:
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

    for name, loss in list(core_algos.POLICY_LOSS_REGISTRY.items()):
        core_algos.POLICY_LOSS_REGISTRY[name] = observed(loss)
    FSDPEngine._build_lr_scheduler = with_trigger(FSDPEngine._build_lr_scheduler, settings)


def _patch_trainers(folder: str) -> None:
    from verl.trainer.ppo import ray_trainer
    from verl.workers.engine.base import BaseEngine

    BaseEngine.train_batch = noting(BaseEngine.train_batch, folder)
    legacy = ray_trainer.RayPPOTrainer
    legacy._update_actor = dumping(legacy._update_actor, read_data_proto, number_data_proto, folder)
    try:
        from verl.trainer.ppo.v1 import trainer_base
    except ImportError:
        # Without the transfer queue only the legacy trainer runs.
        return
    current = trainer_base.PPOTrainer
    current._update_actor = dumping(current._update_actor, read_queue, number_queue, folder)


try:
    register(read_settings())
except Exception as error:
    # verl itself says nothing when a plug-in fails.
    print(f"simlab: the verl plug-in is not loaded: {error}", file=sys.stderr)
    raise
