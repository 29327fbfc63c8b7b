"""Records are the pytrees that JAX makes of dataclasses, and no two classes are one tree."""

from dataclasses import FrozenInstanceError, field, make_dataclass, replace

import jax
import pytest

from simlab.core.paths import PACKAGE_ROOT
from simlab.core.pytree import Scalar, pytree, static, static_names
from simlab.objectives import OBJECTIVE_MODIFIERS


@pytree
class One:
    x: Scalar
    y: object = None
    word: str = static(default="a")


@pytree
class Other:
    x: Scalar
    y: object = None
    word: str = static(default="a")


@pytree(kw_only=True)
class Positive:
    x: Scalar

    def __post_init__(self):
        if not self.x > 0:
            raise ValueError("x must be positive")


_WORD = ("word", str, field(default="a", metadata={"static": True}))
Theirs = jax.tree_util.register_dataclass(
    make_dataclass("Theirs", ["x", ("y", object, None), _WORD], frozen=True)
)


def test_pytree_separates_classes_of_one_shape():
    assert jax.tree.structure(One(1.0)) != jax.tree.structure(Other(1.0))
    assert jax.tree.structure(One(1.0)) == jax.tree.structure(One(2.0))
    assert jax.tree.structure(One(1.0)) != jax.tree.structure(One(1.0, word="b"))


@pytest.mark.parametrize("each", [One(1.0), One(1.0, (2.0, None)), One({"k": 1.0}, 2.0, "b")])
def test_pytree_flattens_as_jax_does(each):
    theirs = Theirs(each.x, each.y, each.word)
    assert jax.tree.leaves_with_path(each) == jax.tree.leaves_with_path(theirs)
    assert jax.tree.map(lambda x: x, each) == each
    assert jax.tree.map(lambda x: x + 1, each).word == each.word


def test_pytree_checks_values_but_not_placeholders():
    with pytest.raises(ValueError, match="positive"):
        Positive(x=-1.0)
    assert jax.tree.map(lambda _: -1, Positive(x=1.0)).x == -1


def test_pytree_is_frozen_and_keyword_only_on_request():
    with pytest.raises(FrozenInstanceError):
        One(1.0).x = 2.0
    with pytest.raises(TypeError):
        Positive(1.0)


def test_static_names_lists_static_fields_of_class_and_record():
    assert static_names(One) == static_names(One(1.0)) == ("word",)
    assert static_names(Positive) == ()


def test_pytree_separates_objective_modifiers_by_class():
    truncated, masked = (OBJECTIVE_MODIFIERS[name].stage for name in ("seq_tis", "seq_mis"))
    masked = replace(masked, correction_clip=truncated.correction_clip)
    assert jax.tree.structure(truncated) != jax.tree.structure(masked)


def test_pytree_is_the_only_registration_in_simlab():
    found = {path.name for path in PACKAGE_ROOT.rglob("*.py") if "tree_util.register" in path.read_text()}
    # xla_pitfalls.py shows the pitfall on JAX's own decorator.
    assert found == {"pytree.py", "xla_pitfalls.py"}
