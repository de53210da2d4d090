"""Upper bounds of the times that settings and options take.

Far above all use, and far below where the integers of a server, or the timers of an event loop, end.
"""

from __future__ import annotations

from typing import Final

DAY_S: Final = 24 * 60 * 60
LONGEST_LEASE_S: Final = DAY_S
LONGEST_GRACE_S: Final = 7 * DAY_S
LONGEST_KEPT_S: Final = 3650 * DAY_S  # logs, result lines, reply topics; also the longest wait for a start
