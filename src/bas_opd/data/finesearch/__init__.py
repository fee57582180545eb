"""FineSearch: questions about small objects in large pictures, in two versions."""

from bas_opd.data.finesearch.assets import SPLITS, Split
from bas_opd.data.finesearch.make import make_finesearch
from bas_opd.data.finesearch.render import render
from bas_opd.data.finesearch.samples import KINDS, VERSIONS, Sample, sample
from bas_opd.data.finesearch.scenes import SIZES, Size

__all__ = [
    "KINDS",
    "SIZES",
    "SPLITS",
    "VERSIONS",
    "Sample",
    "Size",
    "Split",
    "make_finesearch",
    "render",
    "sample",
]
