"""How long machines of rules run: `HEADRACE_MACHINES=20` tries twenty times as many, from a new seed each time."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

TIMES = int(os.environ.get("HEADRACE_MACHINES", "1"))


def run(machine: type[RuleBasedStateMachine], examples: int, steps: int) -> None:
    """Walk through `examples` random sequences of at most `steps` rules of a machine."""
    chosen = settings(
        max_examples=examples * TIMES,
        stateful_step_count=steps,
        deadline=None,
        derandomize=TIMES == 1,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
        phases=(Phase.generate, Phase.shrink),
    )
    run_state_machine_as_test(machine, settings=chosen)
