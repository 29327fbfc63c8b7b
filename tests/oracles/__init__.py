"""Scalar oracles of the numeric kernels, one operation after another in exact arithmetic."""
