"""The import graph of simlab: no cycle, none hidden inside a function; module names are unique."""

import ast
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARED_NAMES = {"__init__", "catalog", "config"}
"""What a module may be called in several packages."""


def modules() -> dict[str, Path]:
    """Return every module of simlab by its dotted name."""
    files = sorted((ROOT / "simlab").rglob("*.py"))
    names = (".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files)
    return {name.removesuffix(".__init__"): file for name, file in zip(names, files, strict=True)}


def imported(tree: ast.AST, names: set[str]) -> set[str]:
    """Return the modules in `names` that a file imports anywhere, type-checking blocks aside."""
    targets: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            # A submodule taken from its package needs nothing of the package itself.
            targets |= inner if inner <= names else inner | {node.module}
        targets |= imported(node, names)
    return targets & names


def test_imports_have_no_cycle():
    files = modules()
    names = set(files)
    graph = {name: imported(ast.parse(file.read_text()), names) - {name} for name, file in files.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"import cycle: {' <- '.join(error.args[1])}") from None


def test_module_names_are_unique():
    files = [file for file in modules().values() if "cli" not in file.parts]
    counts = Counter(file.stem for file in files if file.stem not in SHARED_NAMES)
    assert not {name for name, count in counts.items() if count > 1}
