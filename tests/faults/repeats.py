"""Whether this is `make faults`, which tries more than every test run does."""

from __future__ import annotations

import os

FULL = int(os.environ.get("HEADRACE_FAULTS", "1")) > 1
