"""The one place that imports modules by name: plug-ins called `module:name`, and optional packages.

A plug-in is known by its source and its values. The source is that of its module and of all user code that
the module imports, directly or not.
"""

import contextlib
import hashlib
import importlib
import re
import sys
import time
from collections.abc import Iterable
from importlib.util import cache_from_source
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from simlab.core.catalog import lookup
from simlab.core.own_code import find_source, source_files
from simlab.core.paths import add_checkout_to_path

REFERENCE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d][\w-]*")
_STARTED = time.time_ns()


class _Source(NamedTuple):
    """The files of a plug-in's module, as they were when it was imported."""

    written: dict[Path, int]
    modules: dict[str, Path]
    digest: str


_IMPORTED: dict[str, _Source] = {}
_VALUES: dict[str, tuple[object, str]] = {}
"""Records and the digests of their values, by reference."""
_FOLDERS: list[str] = []


def import_module(name: str) -> ModuleType:
    """Return the module called `name`: an optional package, or one that this package does not depend on."""
    return importlib.import_module(name)


def import_from_checkout(name: str) -> ModuleType:
    """Return a module of `experiments` or `figures`, which lie next to this package or inside it."""
    add_checkout_to_path()
    return importlib.import_module(name)


def add_plugin_folder(folder: Path) -> None:
    """Find plug-ins in `folder`, after what is installed and before folders added earlier."""
    added = str(folder.resolve())
    sys.path[:] = [entry for entry in sys.path if entry not in _FOLDERS]
    _FOLDERS[:] = [added, *(entry for entry in _FOLDERS if entry != added)]
    sys.path += [entry for entry in _FOLDERS if entry not in sys.path]


def references(name: str) -> list[str]:
    """Return the parts `module:name` of a name such as `f32/mymodule:engine`."""
    return REFERENCE.findall(name)


def load_plugin(reference: str) -> tuple[object, str]:
    """Return the object `module:name` and the digest of its source and values, 12 hexadecimal digits.

    A module whose source has changed since its import is imported anew. The values are those of the first
    call after the import: `fingerprint_values` documents which ones count.

    Raises:
        ValueError: For a module that cannot be found or imported, with the folders that were searched, and an
            unknown name, with those of the module.
    """
    name, _, attribute = reference.partition(":")
    source = _current_source(name)
    if source != _IMPORTED.get(name):
        _forget(name, source)
    try:
        module = importlib.import_module(name)
    except Exception as error:
        raise ValueError(f"module {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    _IMPORTED[name] = source
    public = {key: value for key, value in vars(module).items() if not key.startswith("_")}
    record = lookup(public, attribute, f"name in {name}.py,")
    content = f"{source.digest} {_digest_values(reference, record, source.written)}"
    return record, hashlib.sha256(content.encode()).hexdigest()[:12]


def _digest_values(reference: str, record: object, files: Iterable[Path]) -> str:
    from simlab.core.fingerprint import fingerprint_values  # imports JAX, which readers of logs do not need

    known = _VALUES.get(reference)
    if known is None or known[0] is not record:
        _VALUES[reference] = known = record, fingerprint_values(record, files)
    return known[1]


def _current_source(name: str) -> _Source:
    importlib.invalidate_caches()
    first = find_source(name)
    known = _IMPORTED.get(name)
    if known is not None and first.path in known.written and known.written == _times(known.written):
        return known
    contents = source_files(first)
    digest = hashlib.sha256()
    for label, content in sorted((file.label(), content) for file, content in contents.items()):
        digest.update(f"{label} {len(content)} ".encode() + content)
    modules = {file.module(): file.path for file in contents}
    return _Source(_times(file.path for file in contents), modules, digest.hexdigest())


def _forget(name: str, source: _Source) -> None:
    """Drop imported modules whose files have changed since, and compiled copies of the files."""
    changed = name in _IMPORTED or max(source.written.values()) > _STARTED
    for key in source.modules:
        loaded = sys.modules.get(key)
        if loaded is not None and _file_of(loaded) not in source.written:
            del sys.modules[key]  # a module of that name, from another folder
    if changed:
        for key, module in list(sys.modules.items()):
            if key != "__main__" and _file_of(module) in source.written:
                del sys.modules[key]
    for path in source.written:
        # Python takes two versions of equal length, written in the same second, for one.
        with contextlib.suppress(OSError):
            Path(cache_from_source(str(path))).unlink(missing_ok=True)


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file) if isinstance(file, str) else None


def _times(paths: Iterable[Path]) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns if path.is_file() else 0 for path in paths}
