"""User code (not Python's, not of this package, not installed) and the files that it imports."""

import ast
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import NamedTuple

INSTALLED = ("site-packages", "dist-packages")


class SourceFile(NamedTuple):
    """A source file, and the folder that contains it or its top package."""

    path: Path
    root: Path

    def label(self) -> str:
        """Return the path below `root`, which is the same wherever the package is."""
        return self.path.relative_to(self.root).as_posix()

    def module(self) -> str:
        """Return the dotted name of the module."""
        return ".".join(self.path.relative_to(self.root).with_suffix("").parts).removesuffix(".__init__")


def is_own_code(module: str | None) -> bool:
    """Return whether an imported module is user code: not of this package, not Python's, not installed."""
    top = (module or "").partition(".")[0]
    if top == "__main__":  # in a worker process an installed file, whatever code it received
        return True
    if top in ("", "simlab", "builtins") or top in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    return not any(name in file for name in INSTALLED)


def is_installed(entry: str) -> bool:
    """Return whether a folder of `sys.path` is of Python or of installed packages."""
    return any(name in entry for name in INSTALLED) or entry.startswith(sys.base_prefix)


def find_source(name: str) -> SourceFile:
    """Return the file of a module without importing it.

    Raises:
        ValueError: If no folder has the module (the message lists the searched folders), or if the module
            has no source file.
    """
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
    return SourceFile(Path(path), root)


def source_files(first: SourceFile) -> dict[SourceFile, bytes]:
    """Return the content of a file and of all user code that it imports, directly or not."""
    contents: dict[SourceFile, bytes] = {}
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


def _parents(file: SourceFile) -> Iterator[SourceFile]:
    """Yield the packages of a file, which Python imports before it."""
    for folder in file.path.parents:
        if folder == file.root:
            return
        if (folder / "__init__.py").is_file():
            yield SourceFile(folder / "__init__.py", file.root)


def _imports(file: SourceFile, nodes: Iterable[ast.AST]) -> Iterator[SourceFile]:
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


def _files_of(parts: list[str]) -> Iterator[SourceFile]:
    """Yield the files of a module of user code without importing it."""
    spec = _find_top(parts[0])
    if spec is None:
        return
    folders = [Path(each) for each in spec.submodule_search_locations or ()]
    if spec.origin is not None and spec.origin.endswith(".py"):
        origin = Path(spec.origin)
        yield SourceFile(origin, origin.parent.parent if folders else origin.parent)
    for folder in folders:
        yield from _files_below(folder, parts[1:], folder.parent)


def _find_top(name: str) -> ModuleSpec | None:
    """Return the spec of a package or module of user code; None for other code and missing modules."""
    if name in ("simlab", "__main__") or name in sys.stdlib_module_names:
        return None
    # Some editable installs have a finder of their own.
    finders = [each.find_spec for each in sys.meta_path if hasattr(each, "find_spec")]
    spec = next((spec for find in finders if (spec := find(name, None)) is not None), None)
    if spec is None:
        return None
    places = [*([spec.origin] if spec.origin else []), *(spec.submodule_search_locations or ())]
    # simlab's code has its own digest; installed packages are identified by their version.
    return None if any(is_installed(place) for place in places) else spec


def _files_below(folder: Path, parts: list[str], root: Path) -> Iterator[SourceFile]:
    for end in range(1, len(parts) + 1):
        stem = folder.joinpath(*parts[:end])
        for path in (stem.with_suffix(".py"), stem / "__init__.py"):
            if path.is_file():
                yield SourceFile(path, root)
