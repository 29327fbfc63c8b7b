"""Write the rows of a dump to a file, without torch or verl."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

ROWS_PER_BATCH = 256
"""Size of a row group; the experts of more rows would overflow Arrow's 32-bit offsets."""


def write_rows(rows: Sequence[Mapping[str, object]], folder: str | Path, stem: str) -> Path:
    """Write `<stem>.parquet`, or JSON lines without pyarrow, atomically.

    All rows have the same columns: numbers, text, or arrays over the tokens of the response.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        path = folder / f"{stem}.jsonl"
        part = path.with_name(path.name + ".part")
        with open(part, "w") as lines:
            lines.writelines(json.dumps(row, default=lambda array: array.tolist()) + "\n" for row in rows)
    else:
        path = folder / f"{stem}.parquet"
        part = path.with_name(path.name + ".part")
        tables = (
            pa.Table.from_pylist([dict(row) for row in rows[start : start + ROWS_PER_BATCH]])
            for start in range(0, len(rows), ROWS_PER_BATCH)
        )
        pq.write_table(pa.concat_tables(tables), part, row_group_size=ROWS_PER_BATCH, compression="zstd")
    os.replace(part, path)
    return path
