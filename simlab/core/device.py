"""The kind of device that functions are traced for."""

import jax


def on_gpu() -> bool:
    """Return whether functions are traced for a GPU.

    There the number of kernels decides the time of a small model. Some functions have a form of fewer kernels
    for it, which differs from that of the CPU in the order of float32 sums alone.
    """
    return jax.default_backend() == "gpu"
