"""The kernels behind `race`. They need Triton, which comes with PyTorch's CUDA build."""

# pyright: reportMissingImports=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _mix(key):
    """Return the splitmix64 output, as `hashing.mix` does."""
    z = (key + 1) * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def _noise(key, token):
    """Return -log E with E exponential, as `draws.race_noise` does."""
    hashed = _mix(key + token.to(tl.uint64))
    fraction = ((hashed >> 11).to(tl.float64) * 2.0**-53).to(tl.float32)
    fraction = tl.minimum(tl.maximum(fraction, 2.0**-54), 1 - 2.0**-24)
    # -log1p(-fraction). Where 1 - fraction rounds, the factor mends what that does to the log.
    rest = 1.0 - fraction
    lost = tl.where(rest == 1.0, 1.0, 1.0 - rest)
    exponential = tl.where(rest == 1.0, fraction, -tl.log(rest) * (fraction / lost))
    return -tl.log(exponential)


@triton.jit
def _scores(logits, barred, row, stride, column, vocab, temperature):
    """Return logits over the temperature, -inf beyond the vocabulary and where ids are barred."""
    inside = column < vocab
    values = tl.load(logits + row * stride + column, mask=inside, other=float("-inf"))
    return values / temperature + tl.load(barred + column, mask=inside, other=0.0)


@triton.jit
def summarise(
    logits,
    barred,
    largest,
    total,
    weighted,
    vocab,
    stride,
    blocks,
    temperature,
    width: tl.constexpr,
):
    """Write, for a block of a row, its largest score m, sum exp(s - m), sum (s - m) exp(s - m)."""
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * width + tl.arange(0, width)
    scores = _scores(logits, barred, row, stride, column, vocab, temperature)
    top = tl.max(scores, axis=0)
    above = scores - tl.where(top == float("-inf"), 0.0, top)
    masses = tl.exp(above)
    place = row * blocks + tl.program_id(0)
    tl.store(largest + place, top)
    tl.store(total + place, tl.sum(masses, axis=0))
    # No mass times -inf is not a number.
    tl.store(weighted + place, tl.sum(tl.where(masses > 0.0, masses * above, 0.0), axis=0))


@triton.jit
def run(
    logits,
    barred,
    keys,
    alive,
    positions,
    largest,
    total,
    best,
    winner,
    logprob,
    vocab,
    stride,
    blocks,
    apart,
    temperature,
    width: tl.constexpr,
    many: tl.constexpr,
):
    """Write, for a block of a row, who wins it: score with noise, token, and log-prob."""
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * width + tl.arange(0, width)
    block = tl.arange(0, many)
    there = block < blocks
    tops = tl.load(largest + row * blocks + block, mask=there, other=float("-inf"))
    sums = tl.load(total + row * blocks + block, mask=there, other=0.0)
    top = tl.max(tops, axis=0)
    mass = tl.sum(sums * tl.exp(tops - top), axis=0)

    scores = _scores(logits, barred, row, stride, column, vocab, temperature)
    logprobs = (scores - top) - tl.log(mass)
    key = tl.load(keys + tl.load(alive + row)) + tl.load(positions + row * apart)
    values = logprobs + _noise(_mix(key.to(tl.uint64, bitcast=True)), column)
    # What is not a number is neither more nor less than another: the largest of such values could
    # be found anywhere, beyond the vocabulary too.
    values = tl.where(values == values, values, float("-inf"))
    value, at = tl.max(values, axis=0, return_indices=True)
    place = row * blocks + tl.program_id(0)
    tl.store(best + place, value)
    tl.store(winner + place, tl.program_id(0) * width + at)
    tl.store(logprob + place, tl.sum(tl.where(tl.arange(0, width) == at, logprobs, 0.0), axis=0))


@triton.jit
def finish(
    alive,
    positions,
    largest,
    total,
    weighted,
    best,
    winner,
    logprob,
    token,
    logprobs,
    entropies,
    blocks,
    apart,
    limit,
    many: tl.constexpr,
):
    """Write the winner of a row, its log-prob and the entropy of the row."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, many)
    there = block < blocks
    given = row * blocks + block
    tops = tl.load(largest + given, mask=there, other=float("-inf"))
    sums = tl.load(total + given, mask=there, other=0.0)
    products = tl.load(weighted + given, mask=there, other=0.0)
    top = tl.max(tops, axis=0)
    lower = tl.where(tops == float("-inf"), 0.0, tops - top)
    scale = tl.where(tops == float("-inf"), 0.0, tl.exp(lower))
    mass = tl.sum(sums * scale, axis=0)
    mean = tl.sum(scale * (products + lower * sums), axis=0) / mass

    values = tl.load(best + given, mask=there, other=float("-inf"))
    _, at = tl.max(values, axis=0, return_indices=True)
    first = row * blocks + at
    place = tl.load(alive + row) * limit + tl.load(positions + row * apart)
    tl.store(token + row, tl.load(winner + first).to(tl.int64))
    tl.store(logprobs + place, tl.load(logprob + first))
    tl.store(entropies + place, tl.log(mass) - mean)
