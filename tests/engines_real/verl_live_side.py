"""Runs inside verl's environment: the live diagnosis of a `DataProto`, with and without a fault.

`python verl_live_side.py LOGS OUT`: LOGS holds padded arrays by name and case, OUT gets metrics by case.
"""

# pyright: reportMissingImports=false
import json
import sys
from pathlib import Path

import numpy as np
import torch
from verl import DataProto

from simlab.integrations.live_diagnosis import LiveDiagnosis, RunStoppedError

FIELDS = {
    "old_log_probs": "logp_train",
    "rollout_log_probs": "logp_infer",
    "response_mask": "mask",
    "responses": "ids",
}


def main(logs: Path, out: Path) -> None:
    """Diagnose each case as verl's driver would after `old_log_prob`, and stop a run of the faulty one."""
    with np.load(logs) as arrays:
        stored = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    cases = sorted({name.split("/")[0] for name in stored})
    found = {}
    for case in cases:
        groups = np.array([f"{row // 8}" for row in range(len(stored[f"{case}/mask"]))], object)
        proto = DataProto.from_dict(
            tensors={field: stored[f"{case}/{column}"] for field, column in FIELDS.items()},
            non_tensors={"uid": groups},
        )
        found[case] = LiveDiagnosis().diagnose_verl(proto, 0)
        del proto.batch["rollout_log_probs"]
        try:
            LiveDiagnosis().diagnose_verl(proto, 0)
        except ValueError as error:
            found[f"{case} without log-probs"] = str(error)
        proto.batch["rollout_log_probs"] = stored[f"{case}/logp_infer"]
        live = LiveDiagnosis(stop_on=("log_base",), stop_probability=0.6, patience=2)
        try:
            for step in range(3):
                live.diagnose_verl(proto, step)
            found[f"{case} stopped"] = ""
        except RunStoppedError as error:
            found[f"{case} stopped"] = str(error)
    (out / "live.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
