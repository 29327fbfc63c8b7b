"""The one place that imports modules by name: plug-ins called `module:name`, and optional packages.

A plug-in is known by its source and its values. The source is that of its module and of all own code that the
module imports, directly or not. Own code is neither of Python, nor of this package, nor installed.
"""

import ast
import contextlib
import hashlib
import importlib
import re
import sys
import time
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec, PathFinder
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
    modules: dict[str, Path]
    digest: str


class _File(NamedTuple):
    """A source file, and the folder in which its package, or it itself, is."""

    path: Path
    root: Path

    def label(self) -> str:
        """Return the path below `root`, which is the same wherever the package is."""
        return self.path.relative_to(self.root).as_posix()

    def module(self) -> str:
        """Return the dotted name of the module."""
        return ".".join(self.path.relative_to(self.root).with_suffix("").parts).removesuffix(".__init__")


_IMPORTED: dict[str, _Source] = {}
_VALUES: dict[str, tuple[object, str]] = {}
"""Records and the digests of their values, by reference."""
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
    first = _find(name)
    known = _IMPORTED.get(name)
    if known is not None and first.path in known.written and known.written == _times(known.written):
        return known
    contents = _source_files(first)
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


def _find(name: str) -> _File:
    """Return the file of a module."""
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
    return _File(Path(path), root)


def is_installed(entry: str) -> bool:
    """Return whether a folder of `sys.path` is of Python or of installed packages."""
    return any(name in entry for name in INSTALLED) or entry.startswith(sys.base_prefix)


def _times(paths: Iterable[Path]) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns if path.is_file() else 0 for path in paths}


def _source_files(first: _File) -> dict[_File, bytes]:
    """Return the content of a file and of all own code that it imports, directly or not."""
    contents: dict[_File, bytes] = {}
    waiting = [first]
    while waiting:
        file = waiting.pop()
        if file not in contents:
            contents[file] = file.path.read_bytes()
            waiting += _parents(file)
            try:
                nodes = list(ast.walk(ast.parse(contents[file])))
            except (SyntaxError, ValueError) as error:
                if file == first:
                    raise ValueError(f"{file.path} cannot be imported: {error}") from error
                continue  # maybe an optional import; Python reports it otherwise
            waiting += _imports(file, nodes)
    return contents


def _parents(file: _File) -> Iterator[_File]:
    """Yield the packages of a file, which Python imports before it."""
    for folder in file.path.parents:
        if folder == file.root:
            return
        if (folder / "__init__.py").is_file():
            yield _File(folder / "__init__.py", file.root)


def _imports(file: _File, nodes: Iterable[ast.AST]) -> Iterator[_File]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files_of(alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            above = node.module.split(".") if node.module else []
            for alias in node.names:
                parts = [*above, alias.name]
                if not node.level:
                    yield from _files_of(parts)
                elif node.level <= len(file.path.relative_to(file.root).parts):
                    yield from _files_below(file.path.parents[node.level - 1], parts, file.root)


def _files_of(parts: list[str]) -> Iterator[_File]:
    """Yield the files of a module of own code, without an import of it."""
    spec = _find_top(parts[0])
    if spec is None:
        return
    folders = [Path(each) for each in spec.submodule_search_locations or ()]
    if spec.origin is not None and spec.origin.endswith(".py"):
        origin = Path(spec.origin)
        yield _File(origin, origin.parent.parent if folders else origin.parent)
    for folder in folders:
        yield from _files_below(folder, parts[1:], folder.parent)


def _find_top(name: str) -> ModuleSpec | None:
    """Return where a package or module of own code is; None for other code and for what is missing."""
    if name in ("simlab", "__main__") or name in sys.stdlib_module_names:
        return None
    # Some editable installs have a finder of their own.
    finders = [each.find_spec for each in sys.meta_path if hasattr(each, "find_spec")]
    spec = next((spec for find in finders if (spec := find(name, None)) is not None), None)
    if spec is None:
        return None
    places = [*([spec.origin] if spec.origin else []), *(spec.submodule_search_locations or ())]
    # The package's own code has a digest of its own, that of installed packages is their version.
    return None if any(is_installed(place) for place in places) else spec


def _files_below(folder: Path, parts: list[str], root: Path) -> Iterator[_File]:
    for end in range(1, len(parts) + 1):
        stem = folder.joinpath(*parts[:end])
        for path in (stem.with_suffix(".py"), stem / "__init__.py"):
            if path.is_file():
                yield _File(path, root)
