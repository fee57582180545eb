"""The kernels behind `fused_delta`. Needs Triton, which comes with the CUDA build of PyTorch.

Equations are for one head and one chunk, with tokens as rows. S is the state before the chunk, c
the cumulative log decay since its start, b the strengths, and q and k are normalised and scaled:

    D_ij = exp(c_i - c_j) for i >= j, else 0        A = (b k k^T * D), strictly lower
    T    = (I + A)^-1                               P = q k^T * D
    U    = T b (v - e^c k S)                        the corrections
    O    = e^c q S + P U                            the outputs
    S'   = e^(c_last) S + (e^(c_last - c) k)^T U    the state after the chunk

With dX for the gradient of X, the backward pass is

    dU   = P^T dO + e^(c_last - c) k dS'            Y  = T^T dU
    dS   = e^(c_last) dS' + (e^c q)^T dO - (b e^c k)^T Y
    dP   = dO U^T                                   dA = -Y U^T, strictly lower
    dv   = b Y

and the rest follows from P, A and the products with S and S' by the product rule.

Products have at most 32 rows, and nothing but what was loaded is transposed. On Hopper, Triton then
uses mma instructions, not wgmma, which some versions of Triton and of its assembler synchronise
wrongly when an operand is in registers, without an error.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _places(first, length, heads: tl.constexpr, count: tl.constexpr):
    """Return where `count` tokens of the program's head are, from `first` on, and which exist."""
    row = tl.program_id(0).to(tl.int64)
    token = first + tl.arange(0, count)
    place = ((row // heads) * length + token) * heads + row % heads
    return place, token < length


@triton.jit
def _load(source, place, inside, wide: tl.constexpr, first, columns: tl.constexpr):
    """Return `columns` values of each token, or 0 where there is no token."""
    at = place[:, None] * wide + first + tl.arange(0, columns)[None, :]
    return _as_operand(tl.load(source + at, mask=inside[:, None], other=0.0))


@triton.jit
def _load_across(source, place, inside, wide: tl.constexpr, first, columns: tl.constexpr):
    """Return the transpose of what `_load` returns, in fp32."""
    at = place[None, :] * wide + first + tl.arange(0, columns)[:, None]
    return tl.load(source + at, mask=inside[None, :], other=0.0).to(tl.float32)


@triton.jit
def _as_operand(x):
    """Leave bf16 as it is, for `_product`, and return anything else in fp32."""
    if x.dtype != tl.bfloat16:
        x = x.to(tl.float32)
    return x


@triton.jit
def _load_numbers(source, place, inside):
    """Return a number of each token, in fp32."""
    return tl.load(source + place, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _load_factors(factors, number, first, chunk: tl.constexpr, count: tl.constexpr):
    """Return c and the factors of queries and keys for `count` tokens of a chunk."""
    at = factors + number * 3 * chunk + first + tl.arange(0, count)
    return tl.load(at), tl.load(at + chunk), tl.load(at + 2 * chunk)


@triton.jit
def _product(a, b, precision: tl.constexpr):
    """Multiply with the precision of fp32 where operands are fp32 or bf16 as it was given."""
    if precision == "ieee" or (a.dtype == tl.float32 and b.dtype == tl.float32):
        found = tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision=precision)
    elif a.dtype == b.dtype:
        found = tl.dot(a, b)
    elif a.dtype == tl.float32:
        high, middle, low = _split(a)
        found = tl.dot(high, b, tl.dot(middle, b, tl.dot(low, b)))
    else:
        high, middle, low = _split(b)
        found = tl.dot(a, high, tl.dot(a, middle, tl.dot(a, low)))
    return found


@triton.jit
def _split(x):
    """Return three bf16 numbers whose sum has all 24 bits of an fp32 number."""
    high = x.to(tl.bfloat16)
    x -= high.to(tl.float32)
    middle = x.to(tl.bfloat16)
    x -= middle.to(tl.float32)
    return high, middle, x.to(tl.bfloat16)


@triton.jit
def _block(height: tl.constexpr, wide: tl.constexpr, columns: tl.constexpr):
    """Return the places of the first columns of a contiguous matrix."""
    return tl.arange(0, height)[:, None] * wide + tl.arange(0, columns)[None, :]


@triton.jit
def _invert(system, size: tl.constexpr, precision: tl.constexpr):
    """Return (I + system)^-1, where the system is strictly lower triangular.

    Inverted diagonal blocks grow from 1 to all rows. With B two inverted blocks and L what is
    below the first, both are inverted together by B - B L B. Powers of the system, which would
    need fewer products, lose all digits where keys are alike.
    """
    row = tl.arange(0, size)[:, None]
    column = tl.arange(0, size)[None, :]
    below = tl.where(row // 2 == column // 2, system, 0.0)
    inverse = tl.where(row == column, 1.0, 0.0) - below
    for level in tl.static_range(1, 5):
        if 2**level < size:
            joined = (row // 2 ** (level + 1)) == (column // 2 ** (level + 1))
            apart = (row // 2**level) != (column // 2**level)
            below = tl.where(joined & apart, system, 0.0)
            below = _product(inverse, below, precision)
            inverse -= _product(below, inverse, precision)
    return inverse


@triton.jit
def _factor(x, epsilon, normalises: tl.constexpr):
    """Return what normalises each row.

    It multiplies products rather than operands, which are exact in bf16 only as they were given.
    """
    x = x.to(tl.float32)
    factor = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) + epsilon)
    if not normalises:
        factor = tl.full(factor.shape, 1.0, tl.float32)
    return factor


@triton.jit
def _running_sum(x, size: tl.constexpr):
    """Return the sum of each number and all before it."""
    before = tl.arange(0, size)[None, :] <= tl.arange(0, size)[:, None]
    return tl.sum(tl.where(before, x[None, :], 0.0), axis=1)


@triton.jit
def _decay(later, c_later, earlier, c_earlier):
    """Return the decay from tokens (as columns) to later ones (as rows), and 0 to others."""
    between = c_later[:, None] - c_earlier[None, :]
    return tl.exp(tl.where(later[:, None] >= earlier[None, :], between, float("-inf")))


@triton.jit
def _decay_across(earlier, c_earlier, later, c_later):
    """Return the transpose of what `_decay` returns for the same tokens."""
    between = c_later[None, :] - c_earlier[:, None]
    return tl.exp(tl.where(later[None, :] >= earlier[:, None], between, float("-inf")))


@triton.jit(do_not_specialize=["length", "chunks"])
def solve(
    query,
    key,
    log_decay,
    strength,
    factors,
    inverse,
    length,
    chunks,
    scale,
    epsilon,
    heads: tl.constexpr,
    width: tl.constexpr,
    chunk: tl.constexpr,
    rows: tl.constexpr,
    normalises: tl.constexpr,
    precision: tl.constexpr,
):
    """Write the factors and T of a chunk, which is `rows` or twice as long."""
    number = tl.program_id(0).to(tl.int64) * chunks + tl.program_id(1)
    start = tl.program_id(1) * chunk
    token = tl.arange(0, rows)
    is_lower = token[:, None] > token[None, :]
    place, inside = _places(start, length, heads, rows)
    k = _load(key, place, inside, width, 0, width)
    q = _load(query, place, inside, width, 0, width)
    k_factor = _factor(k, epsilon, normalises)
    b = _load_numbers(strength, place, inside) * k_factor
    c = _running_sum(_load_numbers(log_decay, place, inside), rows)
    at = factors + number * 3 * chunk + token
    tl.store(at, c)
    tl.store(at + chunk, _factor(q, epsilon, normalises) * scale)
    tl.store(at + 2 * chunk, k_factor)
    system = _product(k, tl.trans(k), precision) * _decay(token, c, token, c)
    system *= b[:, None] * k_factor[None, :]
    first = _invert(tl.where(is_lower, system, 0.0), rows, precision)
    target = inverse + number * chunk * chunk + _block(rows, chunk, rows)
    tl.store(target, first)
    if chunk > rows:
        place, inside = _places(start + rows, length, heads, rows)
        later = _load(key, place, inside, width, 0, width)
        q = _load(query, place, inside, width, 0, width)
        later_factor = _factor(later, epsilon, normalises)
        b = _load_numbers(strength, place, inside) * later_factor
        later_c = _running_sum(_load_numbers(log_decay, place, inside), rows)
        later_c += tl.sum(tl.where(token == rows - 1, c, 0.0), axis=0)
        tl.store(at + rows, later_c)
        tl.store(at + chunk + rows, _factor(q, epsilon, normalises) * scale)
        tl.store(at + 2 * chunk + rows, later_factor)
        system = _product(later, tl.trans(later), precision) * _decay(
            token, later_c, token, later_c
        )
        system *= b[:, None] * later_factor[None, :]
        second = _invert(tl.where(is_lower, system, 0.0), rows, precision)
        system = _product(later, tl.trans(k), precision) * _decay(token + rows, later_c, token, c)
        system *= b[:, None] * k_factor[None, :]
        below = _product(_product(second, system, precision), first, precision)
        tl.store(target + rows, tl.zeros((rows, rows), tl.float32))
        tl.store(target + rows * chunk, -below)
        tl.store(target + rows * chunk + rows, second)


@triton.jit(do_not_specialize=["length", "chunks"])
def scan(
    key,
    value,
    strength,
    factors,
    inverse,
    initial,
    states,
    corrections,
    final,
    length,
    chunks,
    heads: tl.constexpr,
    width: tl.constexpr,
    wide: tl.constexpr,
    chunk: tl.constexpr,
    tile: tl.constexpr,
    starts: tl.constexpr,
    precision: tl.constexpr,
):
    """Write S^T of each chunk, U, and the last state, for `tile` columns of the values.

    States are kept with values as rows, so that a product has `tile` rows.
    """
    head = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * tile
    turned = tl.arange(0, width)[None, :] * wide + column + tl.arange(0, tile)[:, None]
    if starts:
        state = tl.load(initial + head * width * wide + turned)
    else:
        state = tl.zeros((tile, width), tl.float32)
    for index in range(chunks):
        number = head * chunks + index
        tl.store(states + (number * wide + column) * width + _block(tile, width, width), state)
        place, inside = _places(index * chunk, length, heads, chunk)
        k = _load(key, place, inside, width, 0, width)
        v = _load_across(value, place, inside, wide, column, tile)
        b = _load_numbers(strength, place, inside)
        c, _, k_factor = _load_factors(factors, number, 0, chunk, chunk)
        last = tl.load(factors + number * 3 * chunk + chunk - 1)
        t = tl.load(inverse + number * chunk * chunk + _block(chunk, chunk, chunk))
        known = _product(state, tl.trans(k), precision) * (k_factor * tl.exp(c))[None, :]
        u = _product((v - known) * b[None, :], tl.trans(t), precision)
        at = tl.arange(0, chunk)[None, :] * wide + column + tl.arange(0, tile)[:, None]
        tl.store(corrections + number * chunk * wide + at, u)
        u *= (k_factor * tl.exp(last - c))[None, :]
        state = state * tl.exp(last) + _product(u, k, precision)
    tl.store(final + head * width * wide + turned, state)


@triton.jit(do_not_specialize=["length", "chunks"])
def read(
    query,
    key,
    factors,
    states,
    corrections,
    out,
    length,
    chunks,
    heads: tl.constexpr,
    width: tl.constexpr,
    wide: tl.constexpr,
    chunk: tl.constexpr,
    rows: tl.constexpr,
    tile: tl.constexpr,
    precision: tl.constexpr,
):
    """Write O for `rows` tokens of a chunk."""
    number = tl.program_id(0).to(tl.int64) * chunks + tl.program_id(1)
    start, first = tl.program_id(1) * chunk, tl.program_id(2) * rows
    place, inside = _places(start + first, length, heads, rows)
    all_places, all_inside = _places(start, length, heads, chunk)
    q = _load(query, place, inside, width, 0, width)
    k = _load(key, all_places, all_inside, width, 0, width)
    c, q_factor, _ = _load_factors(factors, number, first, chunk, rows)
    all_c, _, k_factor = _load_factors(factors, number, 0, chunk, chunk)
    decay = _decay(first + tl.arange(0, rows), c, tl.arange(0, chunk), all_c)
    p = _product(q, tl.trans(k), precision) * decay * q_factor[:, None] * k_factor[None, :]
    q_factor *= tl.exp(c)
    for column in range(0, wide, tile):
        s = tl.load(states + (number * wide + column) * width + _block(tile, width, width))
        u = tl.load(corrections + number * chunk * wide + column + _block(chunk, wide, tile))
        o = _product(q, tl.trans(s), precision) * q_factor[:, None] + _product(p, u, precision)
        at = place[:, None] * wide + column + tl.arange(0, tile)[None, :]
        tl.store(out + at, o.to(out.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _normalise_back(of_unit, unit, factor, squared: tl.constexpr, normalises: tl.constexpr):
    """Return the gradient of rows from that of their normalised and scaled form.

    `squared` is the squared length that this form was scaled to.
    """
    if normalises:
        of_unit -= unit * (tl.sum(of_unit * unit, axis=1) / squared)[:, None]
    return of_unit * factor[:, None]


@triton.jit(do_not_specialize=["length", "chunks"])
def read_back(
    query,
    key,
    factors,
    states,
    corrections,
    of_out,
    of_query,
    of_since_start,
    local,
    length,
    chunks,
    heads: tl.constexpr,
    width: tl.constexpr,
    wide: tl.constexpr,
    chunk: tl.constexpr,
    rows: tl.constexpr,
    tile: tl.constexpr,
    normalises: tl.constexpr,
    precision: tl.constexpr,
):
    """Write the gradients of queries, P^T dO, and of c where it is in the outputs with queries.

    For `rows` tokens of a chunk: as rows of P for queries, and as columns for P^T dO.
    """
    number = tl.program_id(0).to(tl.int64) * chunks + tl.program_id(1)
    start, first = tl.program_id(1) * chunk, tl.program_id(2) * rows
    place, inside = _places(start + first, length, heads, rows)
    all_places, all_inside = _places(start, length, heads, chunk)
    c, q_factor, k_factor = _load_factors(factors, number, first, chunk, rows)
    all_c, all_q_factor, all_k_factor = _load_factors(factors, number, 0, chunk, chunk)
    token, other = first + tl.arange(0, rows), tl.arange(0, chunk)

    k = _load(key, place, inside, width, 0, width)
    all_q = _load(query, all_places, all_inside, width, 0, width)
    p = _product(k, tl.trans(all_q), precision) * _decay_across(token, c, other, all_c)
    p *= k_factor[:, None] * all_q_factor[None, :]
    all_of_o = _load(of_out, all_places, all_inside, wide, 0, wide)
    at_local = (number * chunk + first) * wide + _block(rows, wide, wide)
    tl.store(local + at_local, _product(p, all_of_o, precision))

    of_read = tl.zeros((rows, width), tl.float32)
    of_p = tl.zeros((rows, chunk), tl.float32)
    for column in range(0, wide, tile):
        s = tl.load(states + (number * wide + column) * width + _block(tile, width, width))
        all_u = tl.load(corrections + number * chunk * wide + column + _block(chunk, wide, tile))
        of_o = _load(of_out, place, inside, wide, column, tile)
        of_read += _product(of_o, s, precision)
        of_p += _product(of_o, tl.trans(all_u), precision)
    of_p *= _decay(token, c, other, all_c) * all_k_factor[None, :]
    all_k = _load(key, all_places, all_inside, width, 0, width)
    q = _load(query, place, inside, width, 0, width)
    entries = _product(q, tl.trans(all_k), precision) * q_factor[:, None]
    # A token's decay to itself is 1 whatever c is: left out, rather than left to cancel.
    is_other = token[:, None] != other[None, :]
    of_c = tl.sum(tl.where(is_other, of_p * entries, 0.0), axis=1)
    of_read *= tl.exp(c)[:, None]
    unit = q.to(tl.float32) * q_factor[:, None]
    of_c += tl.sum(of_read * unit, axis=1)
    tl.store(of_since_start + number * chunk + first + tl.arange(0, rows), of_c)
    of_q = of_read + _product(of_p, all_k, precision)
    of_q = _normalise_back(of_q, unit, q_factor, 1 / width, normalises)
    at_width = place[:, None] * width + tl.arange(0, width)[None, :]
    tl.store(of_query + at_width, of_q.to(of_query.dtype.element_ty), mask=inside[:, None])


@triton.jit(do_not_specialize=["length", "chunks"])
def scan_back(
    query,
    key,
    strength,
    factors,
    inverse,
    of_out,
    local,
    of_final,
    flows,
    solved,
    of_initial,
    length,
    chunks,
    heads: tl.constexpr,
    width: tl.constexpr,
    wide: tl.constexpr,
    chunk: tl.constexpr,
    tile: tl.constexpr,
    ends: tl.constexpr,
    precision: tl.constexpr,
):
    """Write dS'^T of each chunk, Y, and the gradient of the initial state, for `tile` columns."""
    head = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * tile
    turned = tl.arange(0, width)[None, :] * wide + column + tl.arange(0, tile)[:, None]
    if ends:
        flow = tl.load(of_final + head * width * wide + turned)
    else:
        flow = tl.zeros((tile, width), tl.float32)
    for later in range(chunks):
        index = chunks - 1 - later
        number = head * chunks + index
        tl.store(flows + (number * wide + column) * width + _block(tile, width, width), flow)
        place, inside = _places(index * chunk, length, heads, chunk)
        k = _load(key, place, inside, width, 0, width)
        b = _load_numbers(strength, place, inside)
        c, q_factor, k_factor = _load_factors(factors, number, 0, chunk, chunk)
        last = tl.load(factors + number * 3 * chunk + chunk - 1)
        t = tl.load(inverse + number * chunk * chunk + _block(chunk, chunk, chunk))
        at = tl.arange(0, chunk)[None, :] * wide + column + tl.arange(0, tile)[:, None]
        of_u = tl.load(local + number * chunk * wide + at)
        kept = _product(flow, tl.trans(k), precision)
        of_u += kept * (k_factor * tl.exp(last - c))[None, :]
        y = _product(of_u, t, precision)
        tl.store(solved + number * chunk * wide + at, y)
        y *= (b * k_factor * tl.exp(c))[None, :]
        flow = flow * tl.exp(last) - _product(y, k, precision)
        q = _load(query, place, inside, width, 0, width)
        of_o = _load_across(of_out, place, inside, wide, column, tile)
        of_o *= (q_factor * tl.exp(c))[None, :]
        flow += _product(of_o, q, precision)
    tl.store(of_initial + head * width * wide + turned, flow)


@triton.jit(do_not_specialize=["length", "chunks"])
def write_back(
    query,
    key,
    value,
    strength,
    factors,
    states,
    corrections,
    of_out,
    flows,
    solved,
    of_key,
    of_value,
    of_strength,
    of_since_start,
    of_last,
    length,
    chunks,
    heads: tl.constexpr,
    width: tl.constexpr,
    wide: tl.constexpr,
    chunk: tl.constexpr,
    rows: tl.constexpr,
    tile: tl.constexpr,
    normalises: tl.constexpr,
    precision: tl.constexpr,
):
    """Write the gradients of keys, values and strengths for `rows` tokens of a chunk.

    Those of c are added to what `read_back` found; what these rows add to c_last is `of_last`.
    Each token is the row of some entries of A and the column of others: both are computed here,
    with the token as a row.
    """
    number = tl.program_id(0).to(tl.int64) * chunks + tl.program_id(1)
    start, first = tl.program_id(1) * chunk, tl.program_id(2) * rows
    place, inside = _places(start + first, length, heads, rows)
    all_places, all_inside = _places(start, length, heads, chunk)
    c, _, k_factor = _load_factors(factors, number, first, chunk, rows)
    all_c, all_q_factor, all_k_factor = _load_factors(factors, number, 0, chunk, chunk)
    last = tl.load(factors + number * 3 * chunk + chunk - 1)
    token, other = first + tl.arange(0, rows), tl.arange(0, chunk)
    at_c = of_since_start + number * chunk + first + tl.arange(0, rows)
    of_c = tl.load(at_c)

    # Keys in the outputs and in the state after the chunk.
    of_kept = tl.zeros((rows, width), tl.float32)
    of_p = tl.zeros((rows, chunk), tl.float32)
    carried = 0.0
    for column in range(0, wide, tile):
        at = (number * wide + column) * width + _block(tile, width, width)
        flow = tl.load(flows + at)
        carried += tl.sum(tl.sum(tl.load(states + at) * flow, axis=1), axis=0)
        u = tl.load(
            corrections + (number * chunk + first) * wide + column + _block(rows, wide, tile)
        )
        all_of_o = _load(of_out, all_places, all_inside, wide, column, tile)
        of_kept += _product(u, flow, precision)
        of_p += _product(u, tl.trans(all_of_o), precision)
    of_p *= _decay_across(token, c, other, all_c) * all_q_factor[None, :]
    k = _load(key, place, inside, width, 0, width)
    unit = k.to(tl.float32) * k_factor[:, None]
    all_q = _load(query, all_places, all_inside, width, 0, width)
    entries = _product(k, tl.trans(all_q), precision) * k_factor[:, None]
    is_other = token[:, None] != other[None, :]
    of_c -= tl.sum(tl.where(is_other, of_p * entries, 0.0), axis=1)
    of_kept *= tl.exp(last - c)[:, None]
    kept = tl.where(token < chunk - 1, tl.sum(of_kept * unit, axis=1), 0.0)
    of_c -= kept
    # Each program of a chunk has the whole of `carried`, and adds its share.
    share = tl.exp(last) * carried * (rows / chunk)
    mine = number * (chunk // rows) + tl.program_id(2)
    tl.store(of_last + mine, tl.sum(kept, axis=0) + share)
    of_k = of_kept + _product(of_p, all_q, precision)

    # Keys, values and strengths in the corrections.
    b = _load_numbers(strength, place, inside)
    of_known = tl.zeros((rows, width), tl.float32)
    of_b = tl.zeros((rows,), tl.float32)
    for column in range(0, wide, tile):
        s = tl.load(states + (number * wide + column) * width + _block(tile, width, width))
        y = tl.load(solved + (number * chunk + first) * wide + column + _block(rows, wide, tile))
        of_known -= _product(y, s, precision)
        v = _load(value, place, inside, wide, column, tile)
        of_b += tl.sum(y * v.to(tl.float32), axis=1)
        at = place[:, None] * wide + column + tl.arange(0, tile)[None, :]
        of_v = (y * b[:, None]).to(of_value.dtype.element_ty)
        tl.store(of_value + at, of_v, mask=inside[:, None])
    of_a = tl.zeros((rows, chunk), tl.float32)
    of_a_across = tl.zeros((rows, chunk), tl.float32)
    for column in range(0, wide, tile):
        at = (number * chunk + first) * wide + column + _block(rows, wide, tile)
        u = tl.load(corrections + at)
        y = tl.load(solved + at)
        at = number * chunk * wide + column + _block(chunk, wide, tile)
        of_a -= _product(y, tl.trans(tl.load(corrections + at)), precision)
        of_a_across -= _product(u, tl.trans(tl.load(solved + at)), precision)
    of_a *= tl.where(is_other, _decay(token, c, other, all_c), 0.0)
    of_a_across *= tl.where(is_other, _decay_across(token, c, other, all_c), 0.0)
    of_a_across *= _load_numbers(strength, all_places, all_inside)[None, :]
    of_known *= tl.exp(c)[:, None]
    # Read again: to keep it since the first loop would take registers.
    k = _load(key, place, inside, width, 0, width)
    unit = k.to(tl.float32) * k_factor[:, None]
    known = tl.sum(of_known * unit, axis=1)
    all_k = _load(key, all_places, all_inside, width, 0, width)
    entries = _product(k, tl.trans(all_k), precision) * k_factor[:, None] * all_k_factor[None, :]
    of_b += tl.sum(of_a * entries, axis=1) + known
    tl.store(of_strength + place, of_b.to(of_strength.dtype.element_ty), mask=inside)
    of_a *= b[:, None]
    of_c += tl.sum((of_a - of_a_across) * entries, axis=1) + b * known
    tl.store(at_c, of_c)
    of_k += of_known * b[:, None]
    of_k += _product((of_a + of_a_across) * all_k_factor[None, :], all_k, precision)
    of_k = _normalise_back(of_k, unit, k_factor, 1, normalises)
    at_width = place[:, None] * width + tl.arange(0, width)[None, :]
    tl.store(of_key + at_width, of_k.to(of_key.dtype.element_ty), mask=inside[:, None])


@triton.jit(do_not_specialize=["length", "chunks"])
def sum_back(
    of_since_start,
    of_last,
    of_log_decay,
    length,
    chunks,
    heads: tl.constexpr,
    chunk: tl.constexpr,
    rows: tl.constexpr,
):
    """Write the gradients of the log decays: each is in c of its own and of later tokens."""
    number = tl.program_id(0).to(tl.int64) * chunks + tl.program_id(1)
    place, inside = _places(tl.program_id(1) * chunk, length, heads, chunk)
    of_c = tl.load(of_since_start + number * chunk + tl.arange(0, chunk))
    parts = number * (chunk // rows) + tl.arange(0, chunk // rows)
    of_end = tl.sum(tl.load(of_last + parts), axis=0)
    later = tl.arange(0, chunk)[None, :] >= tl.arange(0, chunk)[:, None]
    found = tl.sum(tl.where(later, of_c[None, :], 0.0), axis=1) + of_end
    tl.store(of_log_decay + place, found.to(of_log_decay.dtype.element_ty), mask=inside)
