"""A plug-in has another digest when its code, the code it imports, or its values change."""

import os
import subprocess
import sys
from dataclasses import dataclass, field

import numpy as np
import pytest

from simlab.core.fingerprint import fingerprint, fingerprint_values
from simlab.core.plugins import load_plugin

FIND = "import sys; from simlab.core.plugins import load_plugin; print(load_plugin(sys.argv[1])[1])"


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Two folders of the module search path."""
    found = tmp_path / "first", tmp_path / "second"
    for folder in found:
        folder.mkdir()
        monkeypatch.syspath_prepend(folder)
    return found


def digest_in_process(reference, folders, seed="0"):
    """Return the digest that a new process finds, which has its own order of sets."""
    path = os.pathsep.join(map(str, folders))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed}
    command = [sys.executable, "-c", FIND, reference]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_plugin_follows_imports_into_other_folders(folders):
    first, second = folders
    (first / "plug_outer.py").write_text("import plug_package.inner as inner\nscale = [inner.HIGH]\n")
    (second / "plug_package").mkdir()
    (second / "plug_package" / "__init__.py").write_text("")
    (second / "plug_package" / "inner.py").write_text("from . import HIGH\nimport plug_last\n")
    (second / "plug_last.py").write_text("# one\n")
    digests = []
    for high, comment in ((1, "one"), (2, "one"), (2, "two")):
        (second / "plug_package" / "__init__.py").write_text(f"HIGH = {high}\n")
        (second / "plug_last.py").write_text(f"# {comment}\n")
        value, digest = load_plugin("plug_outer:scale")
        assert value == [high]
        digests.append(digest)
    assert len(set(digests)) == 3
    assert load_plugin("plug_outer:scale")[1] == digests[-1]


def test_plugin_ignores_installed_packages(folders, monkeypatch):
    installed = folders[1] / "site-packages"
    installed.mkdir()
    monkeypatch.syspath_prepend(installed)
    (folders[0] / "plug_user.py").write_text("import plug_library\nimport json, simlab, numpy\nmine = (1,)\n")
    (installed / "plug_library.py").write_text("X = 1\n")
    before = load_plugin("plug_user:mine")[1]
    (installed / "plug_library.py").write_text("X = 2\n")
    assert load_plugin("plug_user:mine")[1] == before


def test_plugin_takes_helpers_of_its_own_folder(tmp_path, monkeypatch):
    values = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.syspath_prepend(folder)
        (folder / "plug_mine.py").write_text("import plug_shared\nmine = [plug_shared.X]\n")
        (folder / "plug_shared.py").write_text(f"X = {number}\n")
        values.append(load_plugin("plug_mine:mine")[0])
    assert values == [[1], [2]]


DATA = """
import importlib, json, logging, os, threading, time
from pathlib import Path
import numpy as np
import jax.numpy as jnp
HERE = Path(__file__).parent
NUMBER = json.loads((HERE / "data.json").read_text())
helper = importlib.import_module("plug_dynamic")
LOGGER, LOCK, ENVIRONMENT = logging.getLogger(), threading.Lock(), os.environ
ARRAY = jnp.asarray(np.arange(3.0) * NUMBER)
OBJECTS = np.array(["a", None, 0.5], dtype=object)
def inner(x): return x * helper.SCALE
def outer(x): return inner(x)
WORDS = {"alpha", "beta", "gamma"}
CHOSEN = {inner, outer, ("a", "b"), ("c", ("d", "e")), "alpha"}
def plain(batch):
    return batch * ARRAY
def mixed(batch):
    LOGGER.info(HERE, LOCK, ENVIRONMENT)
    return outer(batch) + len(CHOSEN) + len(WORDS & {"alpha", "delta"}) + inner(OBJECTS)
"""


def write_data_module(folders, number=1, scale=2):
    (folders[0] / "plug_data.py").write_text(DATA)
    (folders[0] / "data.json").write_text(str(number))
    (folders[1] / "plug_dynamic.py").write_text(f"SCALE = {scale}\n")


def test_plugin_digest_is_equal_in_all_processes(folders):
    write_data_module(folders)
    here = load_plugin("plug_data:mixed")[1]
    found = {digest_in_process("plug_data:mixed", folders, seed).strip() for seed in ("1", "2", "3")}
    assert found == {here}


def test_plugin_digest_changes_with_its_values(folders):
    write_data_module(folders)
    plain, mixed = (digest_in_process(f"plug_data:{name}", folders) for name in ("plain", "mixed"))
    write_data_module(folders, number=3)
    assert digest_in_process("plug_data:plain", folders) != plain
    assert digest_in_process("plug_data:mixed", folders) == mixed
    write_data_module(folders, scale=3)
    assert digest_in_process("plug_data:plain", folders) == plain
    assert digest_in_process("plug_data:mixed", folders) != mixed


def test_plugin_digest_stays_after_a_value_is_used(folders):
    (folders[0] / "plug_cache.py").write_text("CACHE = {}\ndef mine(x):\n    return CACHE.setdefault(x, x)\n")
    function, before = load_plugin("plug_cache:mine")
    assert callable(function)
    function(3)
    assert load_plugin("plug_cache:mine")[1] == before


def test_values_without_content_count_by_type():
    assert fingerprint_values([object()], ()) == fingerprint_values([object()], ())
    assert fingerprint_values([object(), 1], ()) != fingerprint_values([object(), 2], ())

    @dataclass
    class Incomplete:
        number: int = field(init=False)

    assert fingerprint_values(Incomplete(), ()) == ""
    with pytest.raises(ValueError, match="a value of type object has no content"):
        fingerprint([object()])


def test_fingerprint_counts_the_values_of_object_arrays():
    one, same, other = (np.array([{"a": number}], dtype=object) for number in (1, 1, 2))
    assert fingerprint(one) == fingerprint(same) != fingerprint(other)
