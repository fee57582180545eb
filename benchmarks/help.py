"""How long `bas-opd --help` takes once its files are in memory.

python benchmarks/help.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

RUNS = 9


def main() -> None:
    command = [str(Path(sys.executable).with_name("bas-opd")), "--help"]
    seconds = []
    for _ in range(RUNS + 1):
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        seconds.append(time.perf_counter() - started)
    median = statistics.median(seconds[1:])
    print(f"bas-opd --help: {median:.2f} s, median of {RUNS} warm runs (required: under 0.5 s)")


if __name__ == "__main__":
    main()
