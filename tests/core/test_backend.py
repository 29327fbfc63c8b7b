"""Options of the compiler on each kind of device."""

import jax
import pytest

from simlab.core.backend import GPU_OPTIONS, compiler_options


@pytest.fixture
def _on_a_gpu(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.delenv("XLA_FLAGS", raising=False)


@pytest.mark.usefixtures("_on_a_gpu")
def test_a_gpu_compiles_without_autotuning_by_default(monkeypatch):
    assert compiler_options() == GPU_OPTIONS
    assert GPU_OPTIONS["xla_gpu_autotune_level"] == 0
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=4 --xla_dump_to=/tmp/dump")
    assert compiler_options() == {"xla_gpu_enable_triton_gemm": False}


def test_a_cpu_compiles_with_the_defaults():
    assert compiler_options() is None


def test_the_compiler_knows_every_option_of_a_gpu():
    # A CPU ignores them, but refuses names that it does not know.
    assert jax.jit(lambda x: x + 1, compiler_options=GPU_OPTIONS)(1.0) == 2
    with pytest.raises(Exception, match="No such compile option"):
        jax.jit(lambda x: x + 2, compiler_options={"xla_gpu_unknown": 1})(1.0)
