"""Settings: what arms have in common besides their treatment, as functions that place an arm in one.

An id begins with that of the setting, as in `chain: token TIS`. Arms on chains and recurrences use GRPO and
the truncated engine unless the treatment changes them, those of *cancel* float32.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from experiments.arms.changes import EQUAL, TRUNCATED, objective
from experiments.policies import (
    CHAIN_POLICIES,
    MOE_POLICIES,
    NEW_POLICIES,
    RECURRENCE_POLICIES,
    SPELLING_POLICIES,
    TEMPLATE_POLICIES,
)
from simlab.core.json_value import Json
from simlab.studies.arms import Arm

STEADY_RATE = 4e-4
"""BF16 runs from the MoE policies are stable at this rate, and not at the 7e-4 of the dense arms."""
REST_STEPS, REST_RATE = 10, 1e-9
MOE_MODEL: dict[str, Json] = {"model": {"name": "tiny-moe", "qk_norm": False}}
"""The model of the regime with eight experts of a third of its width, of which two compute a token."""
REPEATS = (1, 2, 3)
"""Seeds of `three_runs`; those of `from_new_policies` have the seed 0."""
RECURRENCE: dict[str, Json] = {
    "task": {"name": "recurrence", "difficulty": 128},
    "prompts_per_step": 4,
    "optimizer.learning_rate": 4e-4,
    **TRUNCATED.engines(),
    **objective("grpo"),
}
"""Up to 128 tokens per response; longer responses get more reward."""
WIDER: dict[str, Json] = {"model": {"name": "tiny-llama", "hidden_size": 96, "intermediate_size": 160}}
CANCEL: dict[str, Json] = {
    "model": "tiny-dense",
    "engines": EQUAL,
    "prompts_per_step": 4,
    "group_size": 16,
    # GSPO learns at it, and at clip ranges of 3e-4 and 4e-4 0.1 to 0.4 of its tokens are clipped.
    # Four times the rate leaves the ratios of a group as close to one: a standard deviation of 0.02 at most.
    "optimizer.learning_rate": 1e-4,
    "schedule.lr_warmup_steps": 20,
}
Place = Callable[[Arm], Arm]


def on_chains(arm: Arm) -> Arm:
    """Return the arm on chains of 64 terms."""
    return _place(arm, "chain", on_chains, _chain_changes(arm))


def at_steady_rate(arm: Arm) -> Arm:
    """Return the arm on chains at the learning rate of the MoE arms."""
    return _place(arm, f"chain at {STEADY_RATE:g}", at_steady_rate, _steady_changes(arm))


def with_moe(arm: Arm) -> Arm:
    """Return the arm on chains whose model is an MoE."""
    changes = {**_steady_changes(arm), **MOE_MODEL}
    return _place(arm, f"chain, MoE at {STEADY_RATE:g}", with_moe, changes, MOE_POLICIES)


def with_moe_at_rest(arm: Arm) -> Arm:
    """Return the arm whose MoE policies stay as they are, so that two arms score the same responses."""
    changes = {**_steady_changes(arm), **MOE_MODEL, "optimizer.learning_rate": REST_RATE}
    rested = replace(arm, steps=REST_STEPS)
    return _place(rested, "chain, MoE at rest", with_moe_at_rest, changes, MOE_POLICIES)


def from_new_policies(arm: Arm) -> Arm:
    """Return the arm on chains that starts from `NEW_POLICIES`."""
    return _place(arm, "chain, new policies", from_new_policies, _chain_changes(arm), NEW_POLICIES)


def three_runs(arm: Arm) -> Arm:
    """Return the arm of `from_new_policies` with three runs from each initial policy."""
    repeated, setting = replace(arm, seeds=REPEATS), "chain, new policies, three runs"
    return _place(repeated, setting, three_runs, _chain_changes(arm), NEW_POLICIES)


def on_recurrences(arm: Arm) -> Arm:
    """Return the arm on recurrences."""
    return _place(arm, "length", on_recurrences, {**RECURRENCE, **arm.changes}, RECURRENCE_POLICIES)


def on_wide_recurrences(arm: Arm) -> Arm:
    """Return the arm on recurrences with a model of width 96."""
    changes = {**RECURRENCE, **WIDER, **arm.changes}
    placed = _place(arm, "length, wide", on_wide_recurrences, changes, RECURRENCE_POLICIES)
    return replace(placed, label=f"wide: {arm.id}")


def on_template(arm: Arm) -> Arm:
    """Return the arm on addition after a template, whose answers share most tokens."""
    changes = {**CANCEL, **arm.changes, "task": "template"}
    return _place(arm, "template", on_template, changes, TEMPLATE_POLICIES)


def in_two_spellings(arm: Arm) -> Arm:
    """Return the arm on addition with two right answers."""
    changes = {**CANCEL, **arm.changes, "task": "two_spellings"}
    return _place(arm, "two_spellings", in_two_spellings, changes, SPELLING_POLICIES)


def _chain_changes(arm: Arm) -> dict[str, Json]:
    default = {**objective("grpo"), **TRUNCATED.engines()}
    return {**default, **arm.changes, "task": "chain", "prompts_per_step": 4}


def _steady_changes(arm: Arm) -> dict[str, Json]:
    return {"optimizer.learning_rate": STEADY_RATE, **_chain_changes(arm)}


def _place(
    arm: Arm,
    setting: str,
    place: Place,
    changes: Mapping[str, Json],
    policies: Mapping[str, Json] = CHAIN_POLICIES,
) -> Arm:
    """Return the arm with its place in the id; the arms whose runs it needs are placed likewise."""
    placed = replace(arm, id=f"{setting}: {arm.id}", label=arm.id, changes=changes, initial_policies=policies)
    return replace(
        placed,
        x_from=arm.x_from and place(arm.x_from),
        noise_follows=arm.noise_follows and place(arm.noise_follows),
    )
