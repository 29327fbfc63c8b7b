"""Benchmarks: experiments that measure time and memory, as ratios within one run."""
