"""Our sampler with one prefill a prompt against `generate` of transformers.

    python benchmarks/sampler.py
    python benchmarks/sampler.py --family qwen3_vl --device cuda --prompts 28 --side 160 --tokens 64

`generate` is called in both ways a user would: with every row as a prompt of its own, where it
encodes and prefills the image once a row, and with `num_return_sequences`, where it encodes it once
a prompt but still prefills it once a row. All sides open the same picture files, once a prompt, and
draw the same number of tokens; ours also returns log-probs and entropies. On a GPU, ours decodes by
a CUDA graph, and a further side shows it without. Required: at least twice as fast.
"""

from __future__ import annotations

from _sides import parser, time_phase

from bas_opd.bench.sampling import sampling

if __name__ == "__main__":
    time_phase(sampling, parser(__doc__, prompts=8, side=768, tokens=32).parse_args())
