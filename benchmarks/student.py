"""The student's update by the selected rows against the released way, on a CPU.

    python benchmarks/student.py

The released way runs all rows, each with its own prompt, and masks the loss of unselected ones.
Here it is the same learner without sharing over all rows, as masking would spare none of its work,
with the loss by plain PyTorch. All sides take the optimizer's step.
Rows are selected at random. Required at prompts 15 times as long as responses: at least three times
as fast.
"""

from __future__ import annotations

from _sides import parser, time_phase

from bas_opd.bench.phases import updating

if __name__ == "__main__":
    time_phase(updating, parser(__doc__, prompts=7, side=672, tokens=32).parse_args())
