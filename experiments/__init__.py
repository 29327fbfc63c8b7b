"""The experiments: one file each, one row here (name -> module with an `EXPERIMENT`)."""

EXPERIMENTS: dict[str, str] = {
    "formats": "experiments.formats",
    "softmax": "experiments.softmax",
    "theory_corrections": "experiments.theory_corrections",
    "theory_survival": "experiments.theory_survival",
    "length_growth": "experiments.length_growth",
    "bench_quantize": "experiments.benchmarks.quantize_throughput",
    "bench_linear": "experiments.benchmarks.linear_throughput",
    "bench_objectives": "experiments.benchmarks.objective_switch",
}
