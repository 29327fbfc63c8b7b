"""One file per training step with what `simlab diagnose` reads: see docs/diagnosis.md for the columns."""

# pyright: reportMissingImports=false

import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from simlab.integrations.verl.dump_writer import write_rows
from simlab.integrations.verl.updates import ROW, STEP, at_theta_old, or_say, parts_of, with_updates

# verl's field -> column and type; lists over the response's tokens.
TOKENS = {
    "old_log_probs": ("logp_train", torch.float32),
    "rollout_log_probs": ("logp_infer", torch.float32),
    "responses": ("ids", torch.int32),
    "advantages": ("advantages", torch.float32),
}
FIELDS = (*TOKENS, "response_mask", "rm_scores", "uid", "routed_experts")
Rows = Tensor | Sequence[Tensor]


def rows_of(
    fields: Mapping[str, Rows],
    lengths: Sequence[int],
    step: int,
    groups: Sequence[Any] | None,
    versions: Sequence[int] | None,
    replay: str = "disabled",
) -> list[dict[str, Any]]:
    """Return one row per sequence; fields that are missing are left out.

    `fields` hold one tensor over the response per sequence, with or without padding behind its `lengths`
    tokens. Those of `routed_experts` are [prompt + response, L, k], the inference engine's with `replay`
    "R3", else the trainer's; token t gets those that computed its probability, at the token before it.
    """
    scores = fields.get("rm_scores", fields.get("token_level_scores"))
    experts = fields.get("routed_experts")
    rows = []
    for index, end in enumerate(lengths):
        mask = fields["response_mask"][index]
        row: dict[str, Any] = {"step": step, "mask": _numbers(mask[:end].bool(), torch.int8)}
        for name, (column, kind) in TOKENS.items():
            if name in fields:
                row[column] = _numbers(fields[name][index][:end], kind)
        if scores is not None:
            row["reward"] = float(scores[index].sum())
        if groups is not None:
            row["group"] = str(groups[index])
        if versions is not None:
            row["version"] = int(versions[index])
        if experts is not None and experts[index].ndim == 3:
            before = len(experts[index]) - len(mask) - 1
            mine = experts[index][before : before + end]
            column = "experts_infer" if replay == "R3" else "experts_train"
            row |= {column: _numbers(mine, torch.int16).reshape(-1), "top_k": mine.shape[2]}
        rows.append(row)
    return rows


def _numbers(values: Tensor, kind: torch.dtype) -> Any:
    return values.detach().to(kind).cpu().numpy()


def dumping(
    update: Callable[..., Any], read: Callable[..., Any], number: Callable[..., None], folder: str
) -> Callable[..., Any]:
    """Wrap a trainer's `_update_actor`: write the batch, with what the update saw of it.

    `read(trainer, batch)` gives the rows; `number(batch, stem)` numbers them for the workers, who note the
    log-probabilities of the update (see `updates`). Also written when the update ends in an error.
    """
    # Optimizer steps since theta_old.
    steps = 0

    def updated(trainer: Any, batch: Any, *rest: Any, **named: Any) -> Any:
        nonlocal steps
        local = int(getattr(trainer, "local_trigger_step", None) or 0)
        steps = steps if local else 0
        # With several updates between two syncs, all of one theta_old, each has a file.
        stem = f"step_{int(trainer.global_steps):06d}" + (f"_{local}" if local else "")
        rows = or_say(stem, lambda: read(trainer, batch))
        if rows:
            # Notes of a run that was killed here.
            shutil.rmtree(parts_of(folder, stem), ignore_errors=True)
            or_say(stem, lambda: number(batch, stem))
        try:
            return update(trainer, batch, *rest, **named)
        finally:
            if rows:
                found = or_say(stem, lambda: with_updates(rows, folder, stem, steps))
                whole, steps = found or (rows, steps)
                or_say(stem, lambda: _write(whole, trainer, folder, stem))

    return updated


def _write(rows: Sequence[dict[str, Any]], trainer: Any, folder: str, stem: str) -> None:
    kept = at_theta_old(rows) if _bypasses(trainer.config) else rows
    if kept:
        write_rows(kept, folder, stem)


def read_data_proto(trainer: Any, batch: Any) -> list[dict[str, Any]]:
    """Rows of a `DataProto`, for verl's legacy trainer."""
    fields = {name: batch.batch[name] for name in batch.batch.keys()}  # noqa: SIM118 - no mapping
    mask = fields["response_mask"]
    width = mask.shape[1]
    # Without it a response ends where its mask ends.
    lengths = (
        fields["attention_mask"][:, -width:].sum(1)
        if "attention_mask" in fields
        else (mask.bool() * torch.arange(1, width + 1, device=mask.device)).amax(1)
    )
    groups, replay = batch.non_tensor_batch.get("uid"), _replay(trainer.config)
    return rows_of(fields, lengths.tolist(), int(trainer.global_steps), groups, None, replay)


def number_data_proto(batch: Any, stem: str) -> None:
    """Number the rows of a `DataProto`; both fields travel to the workers."""
    batch.batch[ROW] = torch.arange(len(batch)).reshape(-1, 1)
    batch.meta_info[STEP] = stem


def read_queue(trainer: Any, batch: Any) -> list[dict[str, Any]]:
    """Rows of a `KVBatchMeta`, whose fields wait in the transfer queue, for the trainer of verl 0.9."""
    import transfer_queue as tq

    real = _real(batch)
    keys = [batch.keys[index] for index in real]
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=list(FIELDS))
    groups = data.pop("uid").tolist() if "uid" in data.keys() else None  # noqa: SIM118
    versions = [batch.tags[index].get("min_global_steps") for index in real]
    known = None if any(version is None for version in versions) else versions
    fields = {name: list(data[name].unbind()) for name in data.keys()}  # noqa: SIM118
    lengths = [len(mask) for mask in fields["response_mask"]]
    return rows_of(fields, lengths, int(trainer.global_steps), groups, known, _replay(trainer.config))


def number_queue(batch: Any, stem: str) -> None:
    """Number the rows of a `KVBatchMeta` in the transfer queue; fillers get -1."""
    import transfer_queue as tq
    from tensordict import TensorDict

    numbers = torch.full((len(batch.keys), 1), -1)
    real = _real(batch)
    numbers[real, 0] = torch.arange(len(real))
    fields = TensorDict({ROW: numbers}, batch_size=len(numbers))
    tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)
    batch.extra_info[STEP] = stem


def _real(batch: Any) -> list[int]:
    return [index for index, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]


def _bypasses(config: Any) -> bool:
    correction = getattr(config, "algorithm", {}).get("rollout_correction", {}) or {}
    return bool(correction.get("bypass_mode", False))


def _replay(config: Any) -> str:
    engine = config.actor_rollout_ref.actor.get("megatron", {}) or {}
    replay = engine.get("router_replay", {}) or {}
    return replay.get("mode", "disabled")
