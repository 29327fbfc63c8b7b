"""Simulate logs of simlab policies with injected faults; fit and evaluate the classifier on them."""
