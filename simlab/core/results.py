"""Results: one directory with Parquet tables and a manifest."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from simlab.core.atomic import write_atomically
from simlab.core.manifest import MANIFEST_NAME, Manifest

Columns = Mapping[str, Sequence[object]]
Rows = Sequence[Mapping[str, object]]
LARGEST_PAGE = 1 << 24
"""Bytes; larger than a column of any stored table."""


def write_table(folder: Path, name: str, data: Columns | Rows | pd.DataFrame) -> Path:
    """Write `data` (columns, list of rows, or a frame) to `folder/name.parquet` atomically.

    Equal data gives equal bytes: no time stamps, no pandas metadata, one row group.
    """
    table = _as_arrow(data).replace_schema_metadata(None)
    # Measured numbers take two thirds of the space when split into bytes; values that repeat take less as a
    # dictionary. One page per column and a high level save another tenth.
    numbers = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    split = [name for name in numbers if len(table.column(name).unique()) > table.num_rows / 50]
    options = {
        "compression": "zstd",
        "compression_level": 19,
        "row_group_size": max(1, table.num_rows),
        "data_page_size": LARGEST_PAGE,
        "write_statistics": False,
        "use_dictionary": [name for name in table.column_names if name not in split],
        "use_byte_stream_split": split,
    }
    path = folder / f"{name}.parquet"
    return write_atomically(path, lambda file: pq.write_table(table, file, **options))


def _as_arrow(data: Columns | Rows | pd.DataFrame) -> pa.Table:
    if isinstance(data, pd.DataFrame):
        return pa.Table.from_pandas(data, preserve_index=False)
    if isinstance(data, Mapping):
        return pa.table(dict(data))
    return pa.Table.from_pylist([dict(row) for row in data])


class Results:
    """A finished run on disk, read lazily: `results.table(name)`, `results.manifest`."""

    def __init__(self, folder: Path):
        """Open `folder`.

        Raises:
            FileNotFoundError: If no finished run is there.
        """
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise FileNotFoundError(f"folder {self.folder} does not exist")
        if not (self.folder / MANIFEST_NAME).is_file():
            raise FileNotFoundError(f"no finished run in {self.folder}: {MANIFEST_NAME} is missing")

    @property
    def manifest(self) -> Manifest:
        """The manifest as a dict."""
        return json.loads((self.folder / MANIFEST_NAME).read_text())

    @property
    def table_names(self) -> list[str]:
        """Names of the tables, sorted."""
        return sorted(path.stem for path in self.folder.glob("*.parquet"))

    def table(self, name: str) -> pd.DataFrame:
        """Return one table as a frame.

        Raises:
            FileNotFoundError: If it does not exist, with the names of the tables.
        """
        path = self.folder / f"{name}.parquet"
        if not path.is_file():
            raise FileNotFoundError(f"no table {name!r} in {self.folder}; there are: {self.table_names}")
        return pd.read_parquet(path)
