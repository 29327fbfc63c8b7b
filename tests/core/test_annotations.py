"""No public signature, record field or type alias of the library contains `Any`."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from simlab.core.paths import PACKAGE_ROOT

PACKAGES = sorted(path.parent.name for path in PACKAGE_ROOT.glob("*/__init__.py"))
# Part of a path -> why its annotations may have `Any`.
ALLOWED = {
    "studies/estimands.py: Frame": "a pandas frame, whose stubs widen every operation",
}


def _is_public(name: str) -> bool:
    return not name.startswith("_") or name.startswith("__")


def _annotations(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the name and each annotation of the public functions, fields and aliases of a module or class."""
    for node in body:
        if isinstance(node, ast.AnnAssign | ast.Assign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            name = target.id if isinstance(target, ast.Name) else ""
            # An alias hides `Any` from the signatures that use it.
            value = node.annotation if isinstance(node, ast.AnnAssign) else node.value
            if _is_public(name) and (
                isinstance(node, ast.AnnAssign) or isinstance(value, ast.Subscript | ast.Name)
            ):
                yield prefix + name, value
        elif not isinstance(node, ast.FunctionDef | ast.ClassDef) or not _is_public(node.name):
            continue
        elif isinstance(node, ast.ClassDef):
            yield from _annotations(node.body, f"{prefix}{node.name}.")
        else:
            args = node.args
            every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
            for annotation in [*(arg.annotation for arg in every if arg is not None), node.returns]:
                yield prefix + node.name, annotation


def _offenders(path: Path) -> list[str]:
    return [
        f"{path.relative_to(PACKAGE_ROOT)}: {name} (line {annotation.lineno})"
        for name, annotation in _annotations(ast.parse(path.read_text()).body)
        if annotation is not None
        and any(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(annotation))
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_public_annotations_have_no_any(package):
    found = [each for path in sorted((PACKAGE_ROOT / package).rglob("*.py")) for each in _offenders(path)]
    assert [each for each in found if not each.startswith(tuple(ALLOWED))] == []
    for start in ALLOWED:
        assert not start.startswith(f"{package}/") or any(each.startswith(start) for each in found), start
