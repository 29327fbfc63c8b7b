"""Build names of arms from the treatment and the set of initial policies."""

STEADY_RATE = 4e-4
"""BF16 runs from the MoE policies are stable at this rate, and not at the 7e-4 of the dense arms."""


def chain_arm(name: str) -> str:
    """Return the name of an arm on chains of 64 terms."""
    return f"chain: {name}"


def steady_arm(name: str) -> str:
    """Return the name of an arm on chains of 64 terms at the learning rate of the MoE arms."""
    return f"chain at {STEADY_RATE:g}: {name}"


def moe_arm(name: str) -> str:
    """Return the name of an arm on chains of 64 terms whose model is an MoE."""
    return f"chain, MoE at {STEADY_RATE:g}: {name}"


def rest_arm(name: str, *, replays: bool = False) -> str:
    """Return the name of an arm whose MoE policies stay as they are, with routing replay R3 or without."""
    return f"chain, MoE at rest: {name}{', R3' if replays else ''}"


def new_arm(name: str) -> str:
    """Return the name of an arm on chains of 64 terms that starts from `NEW_POLICIES`."""
    return f"chain, new policies: {name}"


def repeated_arm(name: str) -> str:
    """Return the name of an arm of `new_arm` with three runs from each initial policy."""
    return f"chain, new policies, three runs: {name}"


def halving_arm(name: str) -> str:
    """Return the name of an arm whose learning rate is halved every quarter of the run."""
    return f"{name}, halving"


def constant_arm(name: str) -> str:
    """Return the name of an arm whose constant learning rate is the mean of that of `halving_arm`."""
    return f"{name}, mean rate of halving"


def rloo_arm(name: str) -> str:
    """Return the name of an arm in the setting of *lr*: on-policy, RLOO, clip 0.2 and 0.28."""
    return f"RLOO, {name}"
