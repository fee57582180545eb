"""The teacher phase over the selected rows against the released way, on a CPU.

    python benchmarks/teacher.py

The released way scores all rows, each with its own crop prompt. Both sides open and encode the crop
of a prompt once, and project every scored token to the vocabulary. Rows are selected at random.
Required: at most 0.30 of the released time.
"""

from __future__ import annotations

from _sides import parser, time_phase

from bas_opd.bench.phases import teaching

if __name__ == "__main__":
    time_phase(teaching, parser(__doc__, prompts=14, side=896, tokens=32).parse_args())
