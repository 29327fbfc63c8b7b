"""No public signature, record field or type alias of the library contains `Any`."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from simlab.core.paths import PACKAGE_ROOT

PENDING = {"checkpoints", "cli", "diagnosis", "integrations", "serving", "sweeps", "training"}
PACKAGES = sorted({path.parent.name for path in PACKAGE_ROOT.glob("*/__init__.py")} - PENDING)


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
            if _is_public(name) and (isinstance(node, ast.AnnAssign) or isinstance(value, ast.Subscript)):
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
        f"{path.relative_to(PACKAGE_ROOT)}:{annotation.lineno} {name}"
        for name, annotation in _annotations(ast.parse(path.read_text()).body)
        if annotation is not None and "Any" in ast.unparse(annotation).replace("AnyObjective", "")
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_public_annotations_have_no_any(package):
    files = sorted((PACKAGE_ROOT / package).rglob("*.py"))
    assert [each for path in files for each in _offenders(path)] == []
