"""All planted bugs, from the files that list them by what they are about."""

from __future__ import annotations

import planted
import planted_files
import planted_memory
import planted_order
import planted_outside
import planted_process
import planted_quotes
import planted_robots
import planted_rows
import planted_safety
import planted_state
import planted_text
import planted_waits
from planted import Bug

BUGS: tuple[Bug, ...] = (
    *planted.BUGS,
    *planted_state.BUGS,
    *planted_order.BUGS,
    *planted_text.BUGS,
    *planted_files.BUGS,
    *planted_robots.BUGS,
    *planted_outside.BUGS,
    *planted_process.BUGS,
    *planted_memory.BUGS,
    *planted_safety.BUGS,
    *planted_waits.BUGS,
    *planted_quotes.BUGS,
    *planted_rows.BUGS,
)
