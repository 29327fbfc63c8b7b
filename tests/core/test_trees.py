"""Dataclasses are the pytrees that JAX makes of them, and no two classes are one tree."""

from dataclasses import field, make_dataclass, replace

import jax
import pytest

from simlab.core.paths import PACKAGE_ROOT
from simlab.core.trees import register_dataclass
from simlab.objectives import SUFFIXES


def _made(name, register):
    """Two numbers and a word."""
    word = ("word", str, field(default="a", metadata={"static": True}))
    return register(make_dataclass(name, ["x", ("y", object, None), word], frozen=True))


One, Other = (_made(name, register_dataclass) for name in ("One", "Other"))
Theirs = _made("Theirs", jax.tree_util.register_dataclass)


def test_classes_of_one_shape_are_two_trees():
    assert jax.tree.structure(One(1.0)) != jax.tree.structure(Other(1.0))
    assert jax.tree.structure(One(1.0)) == jax.tree.structure(One(2.0))
    assert jax.tree.structure(One(1.0)) != jax.tree.structure(One(1.0, word="b"))


@pytest.mark.parametrize("each", [One(1.0), One(1.0, (2.0, None)), One({"k": 1.0}, 2.0, "b")])
def test_leaves_paths_and_the_way_back_are_those_of_jax(each):
    theirs = Theirs(each.x, each.y, each.word)
    assert jax.tree.leaves_with_path(each) == jax.tree.leaves_with_path(theirs)
    assert jax.tree.map(lambda x: x, each) == each
    assert jax.tree.map(lambda x: x + 1, each).word == each.word


def test_suffixes_that_differ_by_their_class_are_different_trees():
    truncated, masked = (SUFFIXES[name].stage for name in ("seq_tis", "seq_mis"))
    masked = replace(masked, correction_clip=truncated.correction_clip)
    assert jax.tree.structure(truncated) != jax.tree.structure(masked)


def test_no_record_of_ours_is_registered_by_jax():
    found = [
        path for path in PACKAGE_ROOT.rglob("*.py") if "tree_util.register_dataclass" in path.read_text()
    ]
    assert {path.name for path in found} == {"trees.py", "traps.py"}, (
        "the one replaces it, the other shows it"
    )
