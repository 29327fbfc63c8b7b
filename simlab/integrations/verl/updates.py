"""The third log-probability of a dump: that of the forward pass of the update, which only workers see.

The driver numbers its rows. Each worker notes, beside the loss, what its forward passes gave for them, one
file per optimizer step in the dump's folder; after the update the driver puts them into its rows.
"""

# pyright: reportMissingImports=false

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROW, STEP = "simlab_row", "simlab_step"
"""A batch's fields: the number of each row [B, 1], and the stem of the step's file."""


def noting(train: Callable[..., Any], folder: str) -> Callable[..., Any]:
    """Wrap verl's `BaseEngine.train_batch`, one optimizer step, so that it notes log-probs of the actor."""
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.padding import no_padding_2_padding

    def trained(engine: Any, data: Any, loss_function: Callable[..., Any]) -> Any:
        stem = tu.get(data, STEP)
        if stem is None:
            return train(engine, data, loss_function)
        seen: dict[str, np.ndarray] = {}

        def note(output: Any, batch: Any) -> None:
            if output and "log_probs" in output and ROW in batch:
                logps = no_padding_2_padding(output["log_probs"].detach(), batch)
                number = len(seen) // 2
                seen[f"row_{number}"] = _flat(batch[ROW])
                seen[f"logp_{number}"] = logps.float().cpu().numpy()

        def noted(*positional: Any, **named: Any) -> Any:
            or_say(stem, lambda: note(named.get("model_output"), named.get("data")))
            return loss_function(*positional, **named)

        result = train(engine, data, noted)
        if seen and engine.is_mp_src_rank_with_outputs():
            or_say(stem, lambda: _write(seen, parts_of(folder, stem)))
        return result

    return trained


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


def parts_of(folder: str | Path, stem: str) -> Path:
    """Where the workers' notes of a step wait for the driver."""
    return Path(folder) / f".{stem}"


def or_say(stem: str, action: Callable[[], Any]) -> Any:
    """Return what `action` returns; a dump that fails says so, and training goes on."""
    try:
        return action()
    except Exception as error:
        print(f"simlab: {stem} is not dumped whole: {type(error).__name__}: {error}", file=sys.stderr)
        return None


def with_updates(
    rows: Sequence[dict[str, Any]], folder: str, stem: str, before: int = 0
) -> tuple[list[dict[str, Any]], int]:
    """Return the rows with `logp`, `update` and `micro_batch`, if the workers noted them for each; and the
    number of updates since theta_old, of which `before` came before these rows.

    With several epochs the first pass over a row counts. The workers' files are taken away.
    """
    found: dict[int, dict[str, Any]] = {}
    parts, micro_batch, update = parts_of(folder, stem), 0, before - 1
    for path in sorted(parts.glob("*.npz")):
        update = before + int(path.name.split("_")[0])
        with np.load(path, allow_pickle=False) as seen:
            for name in [name for name in seen.files if name.startswith("row_")]:
                logps = seen[name.replace("row_", "logp_")]
                for row, logp in zip(seen[name].tolist(), logps, strict=True):
                    found.setdefault(row, {"logp": logp, "update": update, "micro_batch": micro_batch})
                micro_batch += 1
    shutil.rmtree(parts, ignore_errors=True)
    lacking = sum(number not in found for number in range(len(rows)))
    if lacking:
        print(
            f"simlab: {stem} has no logp: {lacking} of {len(rows)} sequences were not noted in the update "
            "(do the workers share the dump's folder?)",
            file=sys.stderr,
        )
        return list(rows), update + 1
    whole = [
        row | found[number] | {"logp": found[number]["logp"][: len(row["mask"])]}
        for number, row in enumerate(rows)
    ]
    return whole, update + 1


def at_theta_old(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of verl's bypass mode, whose `logp_train` is a copy of what the rollout reported.

    Before the first update `logp` is the training engine's at theta_old: rows that have it keep it as
    `logp_train`, the others go. Without `logp` all stay as they are.
    """
    return [row | {"logp_train": row.get("logp", row["logp_train"])} for row in rows if not row.get("update")]
