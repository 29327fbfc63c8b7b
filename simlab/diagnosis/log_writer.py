"""Write a log in the schema that `log_reader` reads."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from simlab.core.atomic import write_atomically
from simlab.diagnosis.log import OVER_TOKENS, TokenLog
from simlab.diagnosis.schema import RECORD_NAMES

COLUMN_NAMES = {record: column for column, record in RECORD_NAMES.items()}


def write_log(log: TokenLog, path: Path) -> Path:
    """Write `log` as Parquet, one row per sequence, atomically; return `path`."""
    offsets = np.concatenate(([0], np.cumsum(log.lengths)))
    columns: dict[str, pa.Array] = {}
    for field in fields(log):
        value = getattr(log, field.name)
        if not isinstance(value, np.ndarray) or field.name == "lengths":
            continue
        name = COLUMN_NAMES.get(field.name, field.name)
        if field.name in OVER_TOKENS:
            width = value[:1].size if value.ndim > 1 else 1
            columns[name] = pa.LargeListArray.from_arrays(offsets * width, pa.array(value.reshape(-1)))
        else:
            columns[name] = pa.array(value)
    if log.experts_train is not None or log.experts_infer is not None:
        columns["top_k"] = pa.array(np.full(log.num_sequences, log.top_k))
    table = pa.table(columns)
    return write_atomically(path, lambda file: pq.write_table(table, file, compression="zstd"))
