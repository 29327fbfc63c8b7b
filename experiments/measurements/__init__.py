"""Experiments without training."""
