import subprocess
import sys
from pathlib import Path

from simlab.sweeps.compile_cache import cache_folder


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
