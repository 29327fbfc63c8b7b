import pytest

from simlab.sweeps.grids import as_grid, grid, listed, sampled


def changes(found):
    return [dict(point.changes) for point in found.points]


def test_grids_multiply_with_the_last_axis_fastest():
    assert changes(grid({"a": [1, 2], "b": ["x", "y"]})) == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    ]
    both = listed([{"a": 1}, {"a": 2, "c": 0}]) * grid({"b": range(2)})
    assert changes(both) == [
        {"a": 1, "b": 0},
        {"a": 1, "b": 1},
        {"a": 2, "c": 0, "b": 0},
        {"a": 2, "c": 0, "b": 1},
    ]
    assert len(as_grid(None)) == 1


def test_listed_takes_rows_columns_and_named_arms():
    assert changes(listed({"a": [1, 2], "b": [3, 4]})) == [{"a": 1, "b": 3}, {"a": 2, "b": 4}]
    named = listed({"x": {"a": 1}, "y": {"a": 2}}) * grid({"seed": [0, 1]})
    assert [point.arm for point in named.points] == ["x", "x", "y", "y"]


def test_samples_depend_on_seed_and_field_alone():
    fields = {"lr": {"log_uniform": [1e-5, 1e-2]}, "clip": [0.1, 0.2]}
    few, many = sampled(5, 1, fields), sampled(50, 1, fields | {"more": {"uniform": [0, 1]}})
    for one, other in zip(few.points, many.points, strict=False):
        assert dict(one.changes).items() <= dict(other.changes).items()
    values = [point.changes["lr"] for point in many.points]
    assert len(set(values)) == 50
    assert all(1e-5 <= value <= 1e-2 for value in values)
    assert {point.changes["clip"] for point in many.points} == {0.1, 0.2}
    assert changes(sampled(5, 2, fields)) != changes(few)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: grid({"a": "grpo"}), "a must be a list of at least one value, got 'grpo'"),
        (lambda: grid({"a": []}), r"a must be a list of at least one value, got \[\]"),
        (lambda: grid({"a": [{"b": 1}, 2, {"b": 1}]}), r"a must have each value once, got {'b': 1} twice"),
        (lambda: listed({"a": [1], "b": [1, 2]}), "equally long"),
        (lambda: grid({"a": [1]}) * grid({"a": [2]}), "a must be in one part of the grid"),
        (lambda: sampled(-1, 0, {"a": [1]}), "count of a sampled grid must be an integer >= 1, got -1"),
        (lambda: sampled(2, 0.5, {"a": [1]}), "seed of a sampled grid must be an integer >= 0, got 0.5"),
        (lambda: listed({}), r"listed points must be at least one, got {}"),
        (lambda: listed([]), r"listed points must be at least one, got \[\]"),
        (lambda: sampled(True, 0, {"a": [1]}), "count of a sampled grid must be an integer >= 1, got True"),
        (lambda: sampled(2, 0, {"a": {"uniform": ["1", 2]}}), r"uniform must be \[low, high\]"),
        (lambda: sampled(2, 0, {"a": {"uniform": [0, float("inf")]}}), r"uniform must be \[low, high\]"),
        (lambda: sampled(2, 0, {"a": {}}), "a must be a list or one of uniform and log_uniform"),
        (lambda: sampled(2, 0, {"a": {"uniform": 3}}), r"uniform must be \[low, high\].*got 3"),
        (lambda: sampled(2, 0, {"a": {"normal": [0, 1]}}), "unknown scale of a 'normal'"),
        (lambda: sampled(2, 0, {"a": {"log_uniform": [0, 1]}}), "above 0 for log_uniform"),
        (lambda: as_grid([1]), r"over must be a table of axes.*got \[1\]"),
    ],
)
def test_bad_grids(make, message):
    with pytest.raises(ValueError, match=message):
        make()
