"""Record the log-probabilities of the forward pass of the update, which only workers compute.

The driver numbers its rows. Each worker writes the log-probabilities of its rows, one file per optimizer step
in the directory of the dump. After the update the driver adds them to its rows.
"""

# pyright: reportMissingImports=false

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from simlab.core.json_value import Json

if TYPE_CHECKING:
    from tensordict import TensorDict
    from verl.workers.engine.base import BaseEngine

Result = TypeVar("Result")
ROW, STEP = "simlab_row", "simlab_step"
"""Fields of a batch: the number of each row [B, 1], and the stem of the file of the step."""


def wrap_train_batch(train: Callable[..., object], folder: str) -> Callable[..., object]:
    """Wrap `BaseEngine.train_batch` of verl, one optimizer step, to record log-probs of the actor."""
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.padding import no_padding_2_padding

    def train_and_record(
        engine: "BaseEngine", data: "TensorDict", loss_function: Callable[..., object]
    ) -> object:
        stem = tu.get(data, STEP)
        if stem is None:
            return train(engine, data, loss_function)
        seen: dict[str, np.ndarray] = {}

        def record(output: Mapping[str, torch.Tensor] | None, batch: "TensorDict") -> None:
            if output and "log_probs" in output and ROW in batch:
                logps = no_padding_2_padding(output["log_probs"].detach(), batch)
                number = len(seen) // 2
                seen[f"row_{number}"] = _flat(batch[ROW])
                seen[f"logp_{number}"] = logps.float().cpu().numpy()

        def loss_and_record(*positional: object, **named: Json) -> object:
            run_or_report(stem, lambda: record(named.get("model_output"), named.get("data")))
            return loss_function(*positional, **named)

        result = train(engine, data, loss_and_record)
        if seen and engine.is_mp_src_rank_with_outputs():
            run_or_report(stem, lambda: _write(seen, get_parts_folder(folder, stem)))
        return result

    return train_and_record


def _flat(numbers: torch.Tensor) -> np.ndarray:
    return (numbers.values() if numbers.is_nested else numbers).reshape(-1).cpu().numpy()


def _write(seen: dict[str, np.ndarray], parts: Path) -> None:
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    parts.mkdir(parents=True, exist_ok=True)
    updates = len(list(parts.glob(f"*_{rank:05d}.npz")))
    path = parts / f"{updates:04d}_{rank:05d}.npz"
    with open(path.with_suffix(".part"), "wb") as file:
        np.savez(file, **seen)  # pyright: ignore[reportArgumentType]
    os.replace(path.with_suffix(".part"), path)


def get_parts_folder(folder: str | Path, stem: str) -> Path:
    """Return the directory of the workers' records of a step."""
    return Path(folder) / f".{stem}"


def run_or_report(stem: str, action: Callable[[], Result]) -> Result | None:
    """Return the result of `action`; report a failure, since training must continue."""
    try:
        return action()
    except Exception as error:
        print(f"simlab: the dump of {stem} is incomplete: {type(error).__name__}: {error}", file=sys.stderr)
        return None


def add_updates(
    rows: Sequence[dict[str, Json]], folder: str, stem: str, before: int = 0
) -> tuple[list[dict[str, Json]], int]:
    """Add `logp`, `update` and `micro_batch` to the rows if the workers recorded all of them.

    Uses the first pass over a row if there are several epochs. Removes the files of the workers.

    Returns:
        The rows, and the number of updates since theta_old, of which `before` precede these rows.
    """
    recorded: dict[int, dict[str, Json]] = {}
    parts, micro_batch, update = get_parts_folder(folder, stem), 0, before - 1
    for path in sorted(parts.glob("*.npz")):
        update = before + int(path.name.split("_")[0])
        with np.load(path, allow_pickle=False) as seen:
            for name in [name for name in seen.files if name.startswith("row_")]:
                logps = seen[name.replace("row_", "logp_")]
                for row, logp in zip(seen[name].tolist(), logps, strict=True):
                    recorded.setdefault(row, {"logp": logp, "update": update, "micro_batch": micro_batch})
                micro_batch += 1
    shutil.rmtree(parts, ignore_errors=True)
    missing = sum(number not in recorded for number in range(len(rows)))
    if missing:
        print(
            f"simlab: {stem} has no logp: the update did not record {missing} of {len(rows)} sequences. "
            "The workers must share the directory of the dump.",
            file=sys.stderr,
        )
        return list(rows), update + 1
    complete = [
        row | recorded[number] | {"logp": recorded[number]["logp"][: len(row["mask"])]}
        for number, row in enumerate(rows)
    ]
    return complete, update + 1


def replace_copied_logps(rows: Sequence[dict[str, Json]]) -> list[dict[str, Json]]:
    """Return rows of bypass mode with the true `logp_train` instead of the copy of the rollout.

    Before the first update, `logp` is that of the training engine at theta_old. Rows after it are dropped;
    rows without `logp` are unchanged.
    """
    return [row | {"logp_train": row.get("logp", row["logp_train"])} for row in rows if not row.get("update")]
