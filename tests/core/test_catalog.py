import pytest

from simlab.core.catalog import lookup


def test_known_name():
    assert lookup({"a": 1}, "a", "format") == 1


def test_unknown_name_says_value_closest_and_allowed():
    with pytest.raises(ValueError, match=r"unknown format 'bf61'; did you mean 'bf16'\? allowed: bf16, fp8"):
        lookup({"bf16": 1, "fp8": 2}, "bf61", "format")


@pytest.mark.parametrize("bad", [3, None, ["bf16"]])
def test_unhashable_or_foreign_types_get_the_same_error(bad):
    with pytest.raises(ValueError, match="allowed: bf16"):
        lookup({"bf16": 1}, bad, "format")
