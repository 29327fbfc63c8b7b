"""Benchmarks are experiments too: ratios measured in one run, results in the same store."""
