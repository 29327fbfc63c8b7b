"""The experiments: one file each, one row here (name -> module with an `EXPERIMENT`)."""

EXPERIMENTS: dict[str, str] = {
    "formats": "experiments.formats",
    "softmax": "experiments.softmax",
    "theory_corrections": "experiments.theory_corrections",
    "theory_survival": "experiments.theory_survival",
    "flagship": "experiments.flagship",
    "flagship_sweep": "experiments.flagship_sweep",
    "which_card": "experiments.which_card",
    "length_growth": "experiments.length_growth",
    "bench_quantize": "experiments.benchmarks.quantize_throughput",
    "bench_linear": "experiments.benchmarks.linear_throughput",
    "bench_objectives": "experiments.benchmarks.objective_switch",
    "bench_step": "experiments.benchmarks.step_speed",
    "bench_sweep": "experiments.benchmarks.sweep_cost",
    "bench_tensor_cores": "experiments.benchmarks.tensor_core_throughput",
}
