"""The one place that imports modules by name: plug-ins called `module:name`, and optional packages.

A plug-in is known by its source: that of its module and of what the module imports from its own folder.
"""

import ast
import contextlib
import hashlib
import importlib
import re
import sys
import time
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from importlib.util import cache_from_source
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from simlab.core.catalog import lookup

REFERENCE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d][\w-]*")
INSTALLED = ("site-packages", "dist-packages")
_STARTED = time.time_ns()


class _Source(NamedTuple):
    """The files of a plug-in's module, as they were when it was imported."""

    written: dict[Path, int]
    digest: str


_IMPORTED: dict[str, _Source] = {}
_FOLDERS: list[str] = []


def import_module(name: str) -> ModuleType:
    """Return the module called `name`: an optional package, or one that this package does not depend on."""
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
    """Return the object `module:name` and the digest of its source, 12 hexadecimal digits.

    A module whose source has changed since its import is imported anew.

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
    return lookup(public, attribute, f"name in {name}.py,"), source.digest


def _current_source(name: str) -> _Source:
    importlib.invalidate_caches()
    path, root = _find(name)
    known = _IMPORTED.get(name)
    if known is not None and path in known.written and known.written == _times(known.written):
        return known
    contents = _source_files(path, root)
    digest = hashlib.sha256()
    for each, content in contents.items():
        digest.update(f"{each.relative_to(root)} {len(content)} ".encode() + content)
    return _Source(_times(contents), digest.hexdigest()[:12])


def _forget(name: str, source: _Source) -> None:
    """Drop imported modules whose files have changed since, and compiled copies of the files."""
    changed = name in _IMPORTED or max(source.written.values()) > _STARTED
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) not in [str(path) for path in source.written]:
        del sys.modules[name]  # a module of that name, from another folder
    for path in source.written:
        for key, module in list(sys.modules.items()):
            if changed and key != "__main__" and getattr(module, "__file__", None) == str(path):
                del sys.modules[key]
        # Python takes two versions of equal length, written in the same second, for one.
        with contextlib.suppress(OSError):
            Path(cache_from_source(str(path))).unlink(missing_ok=True)


def _find(name: str) -> tuple[Path, Path]:
    """Return the file of a module, and the folder in which its package, or it itself, is."""
    folders, dotted, path, root = sys.path, "", None, None
    for part in name.split("."):
        dotted = f"{dotted}.{part}" if dotted else part
        spec = PathFinder.find_spec(dotted, folders)
        if spec is None:
            searched = ", ".join(dict.fromkeys(entry or "." for entry in sys.path if not is_installed(entry)))
            raise ValueError(f"no module {name!r} (searched: {searched}); put {name}.py into one of them")
        path, folders = spec.origin, spec.submodule_search_locations or []
        if root is None:
            file = Path(path) if path is not None else Path(next(iter(folders)), "__init__.py")
            root = file.parent.parent if spec.submodule_search_locations is not None else file.parent
    if path is None or root is None or not path.endswith(".py"):
        raise ValueError(f"module {name!r} has no source file; its results could not be distinguished")
    return Path(path), root


def is_installed(entry: str) -> bool:
    """Return whether a folder of `sys.path` is of Python or of installed packages."""
    return any(name in entry for name in INSTALLED) or entry.startswith(sys.base_prefix)


def _times(paths: Iterable[Path]) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns if path.is_file() else 0 for path in paths}


def _source_files(first: Path, root: Path) -> dict[Path, bytes]:
    """Return the content of a file and of all that it imports from below `root`, directly or not."""
    contents: dict[Path, bytes] = {}
    waiting = [first]
    while waiting:
        path = waiting.pop()
        if path not in contents:
            contents[path] = path.read_bytes()
            waiting += _imports(path, contents[path], root)
    return dict(sorted(contents.items()))


def _imports(path: Path, content: bytes, root: Path) -> Iterator[Path]:
    try:
        nodes = list(ast.walk(ast.parse(content)))
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{path} cannot be imported: {error}") from error
    for node in nodes:
        folder, names = root, []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            folder = path.parents[node.level - 1] if node.level else root
            above = f"{node.module}." if node.module else ""
            names = [f"{above}{alias.name}" for alias in node.names]
        for name in names:
            # The package's own code has a digest of its own, that of installed packages is their version.
            if folder != root or not (name.split(".")[0] == "simlab" or is_installed(str(root))):
                yield from _files_of(folder, name.split("."))


def _files_of(folder: Path, parts: list[str]) -> Iterator[Path]:
    for end in range(1, len(parts) + 1):
        stem = folder.joinpath(*parts[:end])
        yield from (file for file in (stem.with_suffix(".py"), stem / "__init__.py") if file.is_file())
