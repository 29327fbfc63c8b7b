"""The kind of device that functions are traced for."""

import jax


def is_gpu_backend() -> bool:
    """Return whether JAX traces functions for a GPU.

    On a GPU the number of kernels decides the time of a small model, so some functions have a form with fewer
    kernels. It differs from the form for a CPU only in the order of float32 sums.
    """
    return jax.default_backend() == "gpu"
