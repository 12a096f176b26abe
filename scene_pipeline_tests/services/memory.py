"""The peak memory of this process alone."""

from __future__ import annotations

import re
from pathlib import Path


def peak_rss_mb() -> int:
    """Highest resident memory since this program began, in MB.

    ``getrusage`` cannot say: its maximum starts at what the parent held when it forked.
    """
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) // 1024
