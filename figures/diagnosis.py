"""The mismatch of a user's log over its steps, and where in probability it sits."""

from matplotlib.figure import Figure

from figures.style import COLORS, DASHES, PAGE, new_figure
from simlab.core.results import Results

CURVES = {
    "rms_log_rho": "RMS log rho",
    "controlled_rms_log_rho": "at fixed probability",
    "std_rho": "std(rho)",
    "mean_abs_log_rho": "mean |log rho| (TRL)",
}


def draw(results: Results) -> Figure:
    """Left: mismatch over steps. Middle: spread of the sequences' sums. Right: profile in probability."""
    steps = results.table("steps")
    figure, (left, middle, right) = new_figure(PAGE, 2.3, ncols=3)
    shown = [name for name in CURVES if name in steps]
    for look, name in enumerate(shown):
        left.plot(
            steps["step"], steps[name], color=COLORS[look], ls=DASHES[look], marker=".", label=CURVES[name]
        )
    left.set(xlabel="step", ylabel="mismatch (nats)", yscale="log")
    left.legend()
    if "response_length" in steps:
        middle.plot(
            steps["step"],
            steps["response_length"],
            color=COLORS[0],
            marker=".",
            label="response length (tokens)",
        )
    if "log_ppl_abs_diff" in steps:
        middle.plot(
            steps["step"],
            steps["log_ppl_abs_diff"],
            color=COLORS[1],
            ls="--",
            marker=".",
            label="mean |sum of log rho| (nats)",
        )
    middle.set(xlabel="step", yscale="log")
    middle.legend()
    if "bins" in results.table_names:
        bins = results.table("bins")
        names = [f"<{high:g}" for high in bins["high"]]
        right.plot(names, bins["mean_rho_by_pi_train"], color=COLORS[2], marker="s", label="mean rho")
        right.plot(names, bins["rms_log_rho_by_pi_train"], color=COLORS[3], marker="o", label="RMS log rho")
        right.set(xlabel="pi_train", ylim=(0, None))
        right.legend()
    else:
        right.set_axis_off()
    return figure
