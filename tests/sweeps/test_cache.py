import subprocess
import sys
import threading
from pathlib import Path

import pytest

from simlab.core.backend import cache_folder
from simlab.sweeps import compile_cache
from simlab.sweeps.compile_cache import compiling_alone, was_compiled


def test_cache_folder_follows_the_environment(monkeypatch):
    monkeypatch.delenv("SIMLAB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_folder() == Path("/caches/simlab")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "simlab"
    monkeypatch.setenv("SIMLAB_CACHE", "/elsewhere")
    assert cache_folder() == Path("/elsewhere")
    monkeypatch.setenv("SIMLAB_CACHE", "")
    assert cache_folder() is None


def test_importing_the_package_is_cheap():
    code = "import simlab, sys; assert 'jax' not in sys.modules; simlab.sweep; assert 'jax' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("other", "is_blocked"), [("learn", True), ("sample", False)])
def test_compiling_alone_waits_for_the_same_function(monkeypatch, tmp_path, other, is_blocked):
    monkeypatch.setattr(compile_cache, "compile_cache_folder", lambda: tmp_path)
    entered = threading.Event()

    def enter():
        with compiling_alone(other):
            entered.set()

    thread = threading.Thread(target=enter)
    with compiling_alone("learn"):
        thread.start()
        assert entered.wait(0.3 if is_blocked else 30.0) != is_blocked
    thread.join()
    assert entered.is_set()


def test_a_compilation_that_fails_or_still_runs_is_not_done(monkeypatch, tmp_path):
    monkeypatch.setattr(compile_cache, "compile_cache_folder", lambda: tmp_path)
    with pytest.raises(KeyboardInterrupt), compiling_alone("learn"):
        raise KeyboardInterrupt
    assert not was_compiled("learn")
    with compiling_alone("learn"):
        assert not was_compiled("learn")
    assert was_compiled("learn")
    with compiling_alone("learn"):
        assert was_compiled("learn"), "compiled before, and loaded now"


def test_compiling_alone_does_without_a_folder(monkeypatch, tmp_path):
    for folder in (None, tmp_path / "file" / "programs"):
        monkeypatch.setattr(compile_cache, "compile_cache_folder", lambda folder=folder: folder)
        (tmp_path / "file").write_text("a file where a folder should be")
        with compiling_alone("learn"):
            pass
