"""One file per training step with what `simlab diagnose` reads: see docs/diagnosis.md for the columns."""

# pyright: reportMissingImports=false

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# verl's field -> column; lists over the response's tokens.
TOKENS = {
    "old_log_probs": "logp_train",
    "rollout_log_probs": "logp_infer",
    "responses": "ids",
    "advantages": "advantages",
}
FIELDS = (*TOKENS, "response_mask", "rm_scores", "uid", "routed_experts")


def rows_of(
    fields: Mapping[str, Tensor],
    step: int,
    groups: Sequence[Any] | None,
    versions: Sequence[int] | None,
    replay: str = "disabled",
) -> list[dict[str, Any]]:
    """Return one row per sequence from padded fields [B, T]; those that are missing are left out.

    `routed_experts` [B, P + T, L, k] are the inference engine's with `replay` "R3", else the trainer's; row t
    gets those that computed its probability, at the token before it.
    """
    mask = fields["response_mask"].bool()
    columns = {column: fields[name] for name, column in TOKENS.items() if name in fields}
    scores = fields.get("rm_scores", fields.get("token_level_scores"))
    # The response ends where its mask ends; tokens of tools inside it are masked.
    ends = (mask.int() * torch.arange(1, mask.shape[1] + 1, device=mask.device)).amax(1).tolist()
    experts = fields.get("routed_experts")
    rows = []
    for index, end in enumerate(ends):
        row: dict[str, Any] = {"step": step, "mask": mask[index, :end].int().tolist()}
        row |= {name: values[index, :end].tolist() for name, values in columns.items()}
        if scores is not None:
            row["reward"] = float(scores[index].sum())
        if groups is not None:
            row["group"] = str(groups[index])
        if versions is not None:
            row["version"] = int(versions[index])
        if experts is not None and experts.ndim == 4:
            prompt = experts.shape[1] - mask.shape[1]
            mine = experts[index, prompt - 1 : prompt - 1 + end]
            row["experts_infer" if replay == "R3" else "experts_train"] = mine.reshape(-1).tolist()
            row["top_k"] = experts.shape[3]
        rows.append(row)
    return rows


def write_rows(rows: Sequence[Mapping[str, Any]], folder: str | Path, step: int) -> Path:
    """Write `step_NNNNNN.parquet`, or JSON lines where pyarrow is missing; never half a file."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        path = folder / f"step_{step:06d}.jsonl"
        part = path.with_name(path.name + ".part")
        part.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path = folder / f"step_{step:06d}.parquet"
        part = path.with_name(path.name + ".part")
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), part, compression="zstd")
    os.replace(part, path)
    return path


def dumping(update: Callable[..., Any], read: Callable[..., Any], folder: str) -> Callable[..., Any]:
    """Wrap a trainer's `_update_actor`: dump the batch first. `read(trainer, batch)` gives its rows."""

    def updated(trainer: Any, batch: Any, *rest: Any, **named: Any) -> Any:
        rows = read(trainer, batch)
        if rows:
            write_rows(rows, folder, int(trainer.global_steps))
        return update(trainer, batch, *rest, **named)

    return updated


def read_data_proto(trainer: Any, batch: Any) -> list[dict[str, Any]]:
    """Rows of a `DataProto`, for verl's legacy trainer."""
    fields = {name: batch.batch[name] for name in batch.batch.keys()}  # noqa: SIM118 - no mapping
    replay = _replay(trainer.config)
    return rows_of(fields, int(trainer.global_steps), batch.non_tensor_batch.get("uid"), None, replay)


def read_queue(trainer: Any, batch: Any) -> list[dict[str, Any]]:
    """Rows of a `KVBatchMeta`, whose fields wait in the transfer queue, for the trainer of verl 0.9."""
    import transfer_queue as tq

    real = [index for index, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]
    keys = [batch.keys[index] for index in real]
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=list(FIELDS))
    groups = data.pop("uid").tolist() if "uid" in data.keys() else None  # noqa: SIM118
    versions = [batch.tags[index].get("min_global_steps") for index in real]
    padded = data.to_padded_tensor()
    fields = {name: padded[name] for name in padded.keys()}  # noqa: SIM118
    known = None if any(version is None for version in versions) else versions
    return rows_of(fields, int(trainer.global_steps), groups, known, _replay(trainer.config))


def _replay(config: Any) -> str:
    engine = config.actor_rollout_ref.actor.get("megatron", {}) or {}
    replay = engine.get("router_replay", {}) or {}
    return replay.get("mode", "disabled")
