"""Simulated logs of lab policies with injected faults: forward passes, log assembly, fit and evaluation."""
