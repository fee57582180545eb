"""The paper's seven benchmarks and FineSearch: their questions, and their numbers."""

from __future__ import annotations

from bas_opd.errors import ConfigError
from bas_opd.evaluate.benchmarks.benchmark import Benchmark, LoadedSet
from bas_opd.evaluate.benchmarks.cvbench import CVBENCH
from bas_opd.evaluate.benchmarks.finesearch import FINESEARCH
from bas_opd.evaluate.benchmarks.hrbench import HRBENCH4K
from bas_opd.evaluate.benchmarks.mmstar import MMSTAR
from bas_opd.evaluate.benchmarks.mmvp import MMVP
from bas_opd.evaluate.benchmarks.pope import POPE
from bas_opd.evaluate.benchmarks.summary import SEVEN, Measure, Scored, Summary, overall
from bas_opd.evaluate.benchmarks.vstar import VSTAR
from bas_opd.evaluate.benchmarks.zoombench import ZOOMBENCH

_ALL = (VSTAR, ZOOMBENCH, HRBENCH4K, MMVP, CVBENCH, MMSTAR, POPE, FINESEARCH)
NAMES = tuple(each.name for each in _ALL)

__all__ = [
    "NAMES",
    "SEVEN",
    "Benchmark",
    "LoadedSet",
    "Measure",
    "Scored",
    "Summary",
    "benchmark",
    "overall",
]


def benchmark(name: str) -> Benchmark:
    """Return the benchmark of a name."""
    for each in _ALL:
        if each.name == name:
            return each
    raise ConfigError(f"There is no benchmark {name!r}. Choose among {', '.join(NAMES)}.")
