"""Dump one file per training step for `simlab diagnose`; docs/diagnosis.md describes the columns."""

# pyright: reportMissingImports=false

import shutil
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from simlab.core.json_value import Json
from simlab.integrations.verl.dump_writer import write_rows
from simlab.integrations.verl.protocols import DataProto, KVBatchMeta, Trainer
from simlab.integrations.verl.updates import (
    ROW,
    STEP,
    add_updates,
    get_parts_folder,
    replace_copied_logps,
    run_or_report,
)

# Field of verl -> column and type; lists over the tokens of the response.
TOKENS = {
    "old_log_probs": ("logp_train", torch.float32),
    "rollout_log_probs": ("logp_infer", torch.float32),
    "responses": ("ids", torch.int32),
    "advantages": ("advantages", torch.float32),
}
FIELDS = (*TOKENS, "response_mask", "rm_scores", "uid", "routed_experts")
Rows = Tensor | Sequence[Tensor]


def build_rows(
    fields: Mapping[str, Rows],
    lengths: Sequence[int],
    step: int,
    groups: Sequence[object] | None,
    versions: Sequence[int] | None,
    replay: str = "disabled",
) -> list[dict[str, Json]]:
    """Return one row per sequence without the missing fields.

    Args:
        fields: One tensor over the response per sequence, with or without padding after its tokens.
            `routed_experts` are [prompt + response, L, k], of the inference engine if `replay` is "R3", else
            of the training engine. Token t gets the experts that computed its probability, one token earlier.
        lengths: Number of response tokens of each sequence.
        step: Training step.
        groups: Group of each sequence.
        versions: Weight version of each sequence.
        replay: verl's router replay mode.
    """
    scores = fields.get("rm_scores", fields.get("token_level_scores"))
    experts = fields.get("routed_experts")
    rows = []
    for index, end in enumerate(lengths):
        mask = fields["response_mask"][index]
        row: dict[str, Json] = {"step": step, "mask": _to_numpy(mask[:end].bool(), torch.int8)}
        for name, (column, kind) in TOKENS.items():
            if name in fields:
                row[column] = _to_numpy(fields[name][index][:end], kind)
        if scores is not None:
            row["reward"] = float(scores[index].sum())
        if groups is not None:
            row["group"] = str(groups[index])
        if versions is not None:
            row["version"] = int(versions[index])
        if experts is not None and experts[index].ndim == 3:
            start = len(experts[index]) - len(mask) - 1
            chosen = experts[index][start : start + end]
            column = "experts_infer" if replay == "R3" else "experts_train"
            row |= {column: _to_numpy(chosen, torch.int16).reshape(-1), "top_k": chosen.shape[2]}
        rows.append(row)
    return rows


def _to_numpy(values: Tensor, kind: torch.dtype) -> np.ndarray:
    return values.detach().to(kind).cpu().numpy()


def wrap_update_actor(
    update: Callable[..., object],
    read: Callable[..., list[dict[str, Json]]],
    number: Callable[..., None],
    folder: str,
) -> Callable[..., object]:
    """Wrap `_update_actor` of a trainer: write the batch with the log-probabilities of the update.

    `read(trainer, batch)` returns the rows; `number(batch, stem)` numbers them for the workers, which record
    the log-probabilities (see `updates`). Writes the file also if the update fails.
    """
    # Optimizer steps since theta_old.
    steps = 0

    def update_and_dump(trainer: Trainer, batch: object, *rest: object, **named: object) -> object:
        nonlocal steps
        local = int(getattr(trainer, "local_trigger_step", None) or 0)
        steps = steps if local else 0
        # Several updates between two syncs have the same theta_old, but a file each.
        stem = f"step_{int(trainer.global_steps):06d}" + (f"_{local}" if local else "")
        rows = run_or_report(stem, lambda: read(trainer, batch))
        if rows:
            # Remove the records of a run that was killed here.
            shutil.rmtree(get_parts_folder(folder, stem), ignore_errors=True)
            run_or_report(stem, lambda: number(batch, stem))
        try:
            return update(trainer, batch, *rest, **named)
        finally:
            if rows:
                result = run_or_report(stem, lambda: add_updates(rows, folder, stem, steps))
                complete, steps = result or (rows, steps)
                run_or_report(stem, lambda: _write(complete, trainer, folder, stem))

    return update_and_dump


def _write(rows: Sequence[dict[str, Json]], trainer: Trainer, folder: str, stem: str) -> None:
    rows = replace_copied_logps(rows) if _is_bypass_mode(trainer.config) else rows
    if rows:
        write_rows(rows, folder, stem)


def read_data_proto(trainer: Trainer, batch: DataProto) -> list[dict[str, Json]]:
    """Return the rows of a `DataProto`, for the legacy trainer of verl."""
    fields = {name: batch.batch[name] for name in batch.batch.keys()}  # noqa: SIM118 - no mapping
    mask = fields["response_mask"]
    width = mask.shape[1]
    # Without an attention mask, a response ends where its mask ends.
    lengths = (
        fields["attention_mask"][:, -width:].sum(1)
        if "attention_mask" in fields
        else (mask.bool() * torch.arange(1, width + 1, device=mask.device)).amax(1)
    )
    groups, replay = batch.non_tensor_batch.get("uid"), _get_replay(trainer.config)
    return build_rows(fields, lengths.tolist(), int(trainer.global_steps), groups, None, replay)


def number_data_proto(batch: DataProto, stem: str) -> None:
    """Number the rows of a `DataProto`; verl sends both fields to the workers."""
    batch.batch[ROW] = torch.arange(len(batch)).reshape(-1, 1)
    batch.meta_info[STEP] = stem


def read_queue(trainer: Trainer, batch: KVBatchMeta) -> list[dict[str, Json]]:
    """Return the rows of a `KVBatchMeta` with fields in the transfer queue, for the trainer of verl 0.9."""
    import transfer_queue as tq

    real = _find_real(batch)
    keys = [batch.keys[index] for index in real]
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=list(FIELDS))
    groups = data.pop("uid").tolist() if "uid" in data.keys() else None  # noqa: SIM118
    versions: list[Json] = [batch.tags[index].get("min_global_steps") for index in real]
    known = None if any(version is None for version in versions) else versions
    fields = {name: list(data[name].unbind()) for name in data.keys()}  # noqa: SIM118
    lengths = [len(mask) for mask in fields["response_mask"]]
    return build_rows(fields, lengths, int(trainer.global_steps), groups, known, _get_replay(trainer.config))


def number_queue(batch: KVBatchMeta, stem: str) -> None:
    """Number the rows of a `KVBatchMeta` in the transfer queue; fillers get -1."""
    import transfer_queue as tq
    from tensordict import TensorDict

    numbers = torch.full((len(batch.keys), 1), -1)
    real = _find_real(batch)
    numbers[real, 0] = torch.arange(len(real))
    fields = TensorDict({ROW: numbers}, batch_size=len(numbers))
    tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)
    batch.extra_info[STEP] = stem


def _find_real(batch: KVBatchMeta) -> list[int]:
    return [index for index, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]


def _is_bypass_mode(config: Json) -> bool:
    correction = getattr(config, "algorithm", {}).get("rollout_correction", {}) or {}
    return bool(correction.get("bypass_mode", False))


def _get_replay(config: Json) -> str:
    engine = config.actor_rollout_ref.actor.get("megatron", {}) or {}
    replay = engine.get("router_replay", {}) or {}
    return replay.get("mode", "disabled")
