"""Settings that verl's config lacks, from environment variables, which Ray passes to all processes."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

PREFIX = "SIMLAB_VERL_"
SCHEDULES = ("length-triggered", "mismatch-triggered")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The variable `SIMLAB_VERL_NAME` sets the field `name`; the defaults are those of simlab.

    - `dump`: directory for one token-level file per step; None: no dump.
    - `schedule`: one of `SCHEDULES`, multiplied with that of verl under FSDP; None: verl's alone.
    - `rise`, `patience`, `delay`, `final`, `early`, `smoothing`, `cooldown`: as in
      `simlab.training.schedules`. `early` and `patience` are for the length trigger, `mismatch_early` for
      the mismatch trigger.
    - `acrl_*`, `distortion_*`, `opsm_delta`, `transform_scale`, `rebalance_floor`,
      `divergence_bound`, `kpop_bound`, `drpo_delta`, `vespo_*`, `m2_threshold`, `vaco_*`,
      `rollout_kl_coefficient`: numbers of objectives.
    - `otb_zero_tail`: 0: verl's optimal token baseline also has a baseline where one response is left.
    """

    dump: str | None = None
    schedule: str | None = None
    rise: float = 2.0
    patience: float = 3.0
    delay: float = 1.8
    final: float = 0.1
    early: float = 10.0
    mismatch_early: float = 20.0
    smoothing: float = 0.9
    cooldown: float = 20.0
    acrl_gamma: float = 0.65
    acrl_clip: float = 3.0
    acrl_reference: float | None = None
    distortion_delta: float = 2.0
    distortion_threshold: float = 0.1
    distortion_std: float = 0.2
    opsm_delta: float = 1e-4
    transform_scale: float = 0.5
    rebalance_floor: float = 1e-6
    divergence_bound: float = 0.3
    kpop_bound: float = 0.1
    drpo_delta: float = 12.5
    vespo_k_positive: float = 2.0
    vespo_lambda_positive: float = 3.0
    vespo_k_negative: float = 3.0
    vespo_lambda_negative: float = 2.0
    m2_threshold: float = 0.04
    vaco_bound: float = 0.3
    vaco_clip: float = 2.0
    rollout_kl_coefficient: float = 1e-3
    otb_zero_tail: float = 1.0

    def __post_init__(self):
        """Reject an unknown schedule."""
        if self.schedule is not None and self.schedule not in SCHEDULES:
            raise ValueError(
                f"{PREFIX}SCHEDULE must be one of {', '.join(SCHEDULES)}, got {self.schedule!r}."
            )


NUMBERS = tuple(each.name for each in fields(Settings) if each.name not in ("dump", "schedule"))


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Return the settings in the environment.

    Raises:
        ValueError: A name is unknown, or a value is not a number.
    """
    environment = os.environ if environment is None else environment
    names = ("dump", "schedule", *NUMBERS)
    values = {}
    for variable, text in environment.items():
        if not variable.startswith(PREFIX):
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in names:
            allowed = ", ".join(PREFIX + known.upper() for known in names)
            raise ValueError(f"variable must be one of {allowed}, got {variable}.")
        try:
            values[name] = float(text) if name in NUMBERS else text
        except ValueError as error:
            raise ValueError(f"{variable} must be a number, got {text!r}.") from error
    return Settings(**values)
