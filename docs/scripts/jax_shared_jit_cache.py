"""Minimal example: two dataclasses of equal shape can share an entry of a jit cache.

`jax.tree_util.register_dataclass` leaves the class out of the comparison of tree structures: two classes
with equally many fields are equal. Their hashes differ, so jit usually tells them apart. In JAX 0.10, when
the hashes collide in the cache's table, a jitted function that has seen one class runs the compiled
function of that class for the other. It returns a wrong number without an error. Memory addresses decide
about collisions, so the count differs between processes. docs/jax_jit_cache.md has the counts.

Run: python docs/scripts/jax_shared_jit_cache.py [--library equinox]
"""

# pyright: reportMissingImports=false
import argparse
from dataclasses import dataclass

import jax

NUM_CLASSES = 8


def make_class(factor: int, library: str) -> type:
    """Return a frozen pytree class of `library` with one field and a method that multiplies by `factor`."""
    body = {"__annotations__": {"x": float}, "apply": lambda self: factor * self.x}
    if library == "equinox":
        import equinox

        return type(f"Times{factor}", (equinox.Module,), body)
    plain = type(f"Times{factor}", (), body)
    if library == "chex":
        import chex

        return chex.dataclass(plain, frozen=True)
    return jax.tree_util.register_dataclass(dataclass(plain, frozen=True), data_fields=["x"], meta_fields=[])


def main() -> None:
    """Count calls that return the number of another class."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", type=int, default=60, help="jitted functions that are tried")
    parser.add_argument("--library", choices=("jax", "equinox", "chex"), default="jax")
    chosen = parser.parse_args()
    functions = chosen.functions
    records = [make_class(factor, chosen.library)(x=1.0) for factor in range(1, NUM_CLASSES + 1)]
    trees = {jax.tree.structure(record) for record in records}
    equal = jax.tree.structure(records[0]) == jax.tree.structure(records[1])
    wrong = 0
    for _ in range(functions):
        apply = jax.jit(lambda record: record.apply())
        wrong += sum(float(apply(record)) != factor for factor, record in enumerate(records, start=1))
    versions = f"{chosen.library}, jax {jax.__version__}"
    print(f"{versions}: tree structures of two classes are equal: {equal}; {len(trees)} in a set")
    print(f"{wrong} of {functions * NUM_CLASSES} calls returned the number of another class")


if __name__ == "__main__":
    main()
