import pytest

from simlab.core.catalog import lookup


def test_known_name():
    assert lookup({"a": 1}, "a", "format") == 1


def test_unknown_name_says_value_closest_and_allowed():
    with pytest.raises(ValueError, match=r"unknown format 'bf61'; did you mean 'bf16'\? allowed: bf16, fp8"):
        lookup({"bf16": 1, "fp8": 2}, "bf61", "format")


@pytest.mark.parametrize(("name", "hint"), [("zzz", ""), ("name1", "did you mean 'name19'\\? ")])
def test_long_catalog_is_shortened_with_its_command(name, hint):
    catalog = dict.fromkeys(f"name{n}" for n in range(10, 30))
    expected = rf"{hint}allowed: name10, .*, name17, \.\.\. \(20 in all: simlab list engines\)$"
    with pytest.raises(ValueError, match=expected):
        lookup(catalog, name, "inference engine of the pair")
    with pytest.raises(ValueError, match=r"name17, \.\.\. \(20 in all\)$"):
        lookup(catalog, name, "part")


@pytest.mark.parametrize("bad", [3, None, ["bf16"]])
def test_unhashable_or_foreign_types_get_the_same_error(bad):
    with pytest.raises(ValueError, match="allowed: bf16"):
        lookup({"bf16": 1}, bad, "format")
