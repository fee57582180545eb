"""Decoding with a cache of fixed size, against the one that grows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from stage_fixtures import make_examples, make_model
from torch import Tensor

from bas_opd.compute.world import World
from bas_opd.data.images import open_image
from bas_opd.model.activations import activations
from bas_opd.model.cache import AssignedLinearLayer, cache_bytes
from bas_opd.model.head import Head, plain_head
from bas_opd.model.loading import LoraSettings
from bas_opd.model.size import model_size
from bas_opd.model.vlm import Prefix, VisionLanguageModel
from bas_opd.model.weights import ShadowWeights
from bas_opd.rollout import decoding
from bas_opd.rollout.decoding import (
    DRAW_BYTES,
    Decoder,
    FixedSteps,
    _capacity,
    _few,
    decoding_bytes,
)
from bas_opd.rollout.draws import race_noise, row_keys
from bas_opd.types import Hooks

LIMIT, EACH = 14, 3


@pytest.fixture(params=["small_qwen35", "small_qwen3vl", "small_qwen25vl"])
def model(request: pytest.FixtureRequest) -> VisionLanguageModel:
    return make_model(request.getfixturevalue(request.param))


def prefilled(
    model: VisionLanguageModel, folder: Path, n: int = 4, *, is_repeated: bool = True
) -> Prefix:
    """Prompts of several lengths, each for some rows; a new one each time, as decoding uses it."""
    folder.mkdir(exist_ok=True)
    prompts = [
        model.processor.encode(open_image(e.image), e.question) for e in make_examples(folder, n)
    ]
    with torch.no_grad():
        prefix = model.prefill(prompts)
        return prefix.rows(torch.arange(EACH * n) // EACH) if is_repeated else prefix


def drawing(seed: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def draw(logits: Tensor, alive: Tensor, position: Tensor) -> Tensor:
        keys = row_keys(seed, 0, alive // EACH, alive % EACH)
        noise = race_noise(keys, position.expand(len(alive)), logits.shape[-1])
        return (logits.log_softmax(-1) + noise).argmax(-1)

    return draw


@torch.no_grad()
def test_a_fixed_cache_decodes_the_same_tokens(model: VisionLanguageModel, tmp_path: Path) -> None:
    tokens, lengths = Decoder(model, drawing(3), limit=LIMIT)(
        prefilled(model, tmp_path), fixed=False
    )
    assert len(set(lengths.tolist())) > 2
    decode = Decoder(model, drawing(3), limit=LIMIT)
    for _ in range(2):  # The second time, its tensors hold what the first left there.
        fixed, fixed_lengths = decode(prefilled(model, tmp_path), fixed=True)
        assert fixed_lengths.tolist() == lengths.tolist()
        assert fixed.tolist() == tokens.tolist()


@torch.no_grad()
@pytest.mark.parametrize("room", [0, 2**40])
def test_a_prompt_is_repeated_for_its_rows_where_they_are_decoded(
    model: VisionLanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    told: list[str] = []
    decode = Decoder(model, drawing(3), limit=LIMIT, hooks=Hooks(notice=told.append))
    tokens, lengths = decode(prefilled(model, tmp_path), fixed=False)
    prompts = [prefilled(model, tmp_path, is_repeated=False) for _ in range(3)]
    assert prompts[0].mask is not None  # of several lengths
    assert len({tuple(row) for row in tokens.tolist()}) > 4
    monkeypatch.setattr(decode, "_room", lambda: room)  # Without room, no cache of fixed size.
    for prefix, fixed in zip(prompts, (False, True, True), strict=True):
        found, found_lengths = decode(prefix, repeats=EACH, fixed=fixed)
        assert found_lengths.tolist() == lengths.tolist()
        assert found.tolist() == tokens.tolist()
    assert bool(decode._steps) == (room > 0)
    assert len(told) == (room == 0)  # once
    assert all("a cache for 12 rows of" in each and "0.0 GB may be used" in each for each in told)


@torch.no_grad()
@pytest.mark.parametrize("fixture", ["small_qwen35", "small_qwen3vl"])
@pytest.mark.parametrize("large", [0, 2**40])
def test_what_decoding_takes_is_known_from_the_configuration(
    fixture: str,
    large: int,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decoding, "LARGE_BYTES", large)
    monkeypatch.setattr(decoding, "STRETCH", 2)
    monkeypatch.setattr(decoding, "_capacity", lambda tokens: tokens)
    folder = request.getfixturevalue(fixture)
    model = make_model(folder)
    decode = Decoder(model, drawing(3), limit=LIMIT)
    prefix = prefilled(model, tmp_path, is_repeated=False)
    length = prefix.cache.get_seq_length()
    begun = cache_bytes(prefix.cache, length)
    decode(prefix, repeats=EACH, fixed=True)
    first = next(steps for (rows, _), steps in decode._steps.items() if rows == 4 * EACH)
    kept = activations(folder)
    counted = decoding_bytes(kept, prompts=4, each=EACH, length=length, limit=LIMIT)
    drawn = DRAW_BYTES * 4 * EACH * model.head.weight.shape[0]  # type: ignore[index, union-attr]
    assert counted == begun + first.size + drawn
    several = decoding_bytes(
        kept, prompts=4, each=EACH, length=length, limit=LIMIT, copies=int(drawn) + 7
    )
    assert several == counted + 7


@torch.no_grad()
@pytest.mark.parametrize("rank", [0, 2])
def test_the_weights_that_decoding_rounds_are_counted_from_the_configuration(
    small_qwen35: Path, rank: int
) -> None:
    lora = LoraSettings(rank=rank) if rank else None
    model = make_model(small_qwen35, precision=torch.bfloat16, lora=lora)
    copies = model.rounded_linears()
    assert copies is not None
    size = partial(model_size, small_qwen35, lora=lora)
    assert size(precision=torch.bfloat16).rounded == copies.size > 0
    assert size(precision=torch.float32).rounded == 0
    # Several processes gather all but adapters in half precision.
    assert size(precision=torch.bfloat16, ranks=2).rounded == (copies.size if rank else 0)


@torch.no_grad()
def test_a_fixed_cache_of_a_sharded_model_ends_with_its_phase(
    model: VisionLanguageModel, tmp_path: Path
) -> None:
    expected = Decoder(model, drawing(3), limit=LIMIT)(prefilled(model, tmp_path), fixed=False)
    model.shard(World())
    decode = Decoder(model, drawing(3), limit=LIMIT)
    for is_trimmed in (False, True, False):  # A phase that fails may leave its steps behind.
        with model.gathered():
            found = decode(prefilled(model, tmp_path), fixed=True)
            assert [each.tolist() for each in found] == [each.tolist() for each in expected]
            places = {p.data_ptr() for p in model.network.parameters()}
            assert decode._steps
            assert set(decode._places) == places
        if is_trimmed:
            decode.trim()
            assert not decode._steps


@torch.no_grad()
@pytest.mark.parametrize("stretch", [1, 3, 100])
def test_large_caches_are_exchanged_as_rows_end_and_responses_grow(
    model: VisionLanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stretch: int
) -> None:
    tokens, lengths = Decoder(model, drawing(3), limit=LIMIT)(
        prefilled(model, tmp_path), fixed=False
    )
    monkeypatch.setattr(decoding, "LARGE_BYTES", 0)
    monkeypatch.setattr(decoding, "STRETCH", stretch)
    monkeypatch.setattr(decoding, "CHECK_EVERY", 1)
    monkeypatch.setattr(decoding, "_capacity", lambda tokens: tokens)
    decode = Decoder(model, drawing(3), limit=LIMIT)
    for _ in range(2):
        fixed, fixed_lengths = decode(prefilled(model, tmp_path), fixed=True)
        assert fixed_lengths.tolist() == lengths.tolist()
        assert fixed.tolist() == tokens.tolist()
    sizes = {rows for rows, _ in decode._steps}
    assert len(sizes) > 1  # rows left
    assert max(sizes) == EACH * 4
    rooms = {capacity for _, capacity in decode._steps}
    assert (len(rooms) > 2) == (stretch < 100)


@torch.no_grad()
def test_what_does_not_fit_a_fixed_cache_goes_on_in_one_that_grows(
    model: VisionLanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, _ = Decoder(model, drawing(3), limit=LIMIT)(prefilled(model, tmp_path), fixed=False)
    monkeypatch.setattr(decoding, "LARGE_BYTES", 0)
    monkeypatch.setattr(decoding, "STRETCH", 3)
    monkeypatch.setattr(decoding, "_capacity", lambda tokens: tokens)
    decode = Decoder(model, drawing(3), limit=LIMIT)
    taken: list[int] = []
    take = decode._take_steps

    def first_only(steps: Any, rows: Any) -> None:
        taken.append(rows.position)
        take(steps, rows)
        monkeypatch.setattr(decoding, "FIXED_BYTES", 0)

    monkeypatch.setattr(decode, "_take_steps", first_only)
    fixed, _ = decode(prefilled(model, tmp_path), fixed=True)
    assert taken == [0]
    assert fixed.tolist() == tokens.tolist()


@torch.no_grad()
def test_spare_rows_have_a_number_of_their_own(
    model: VisionLanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "LARGE_BYTES", 0)
    draw, seen = drawing(3), []

    def choose(logits: Tensor, alive: Tensor, position: Tensor) -> Tensor:
        seen.append(alive.tolist())
        assert logits.isfinite().all()
        return draw(logits, alive, position)

    monkeypatch.setattr(decoding, "CHECK_EVERY", 1)
    monkeypatch.setattr(decoding, "_few", lambda rows: rows + 2)
    prefix = prefilled(model, tmp_path).rows(torch.arange(11))
    Decoder(model, choose, limit=LIMIT)(prefix, fixed=True)
    assert seen[0] == [*range(11)]
    assert any(11 in numbers for numbers in seen)
    for numbers in seen:
        rows = [number for number in numbers if number != 11]
        assert len(set(rows)) == len(rows)


@torch.no_grad()
def test_rounded_weights_change_nothing(small_qwen35: Path, tmp_path: Path) -> None:
    model = make_model(small_qwen35, precision=torch.bfloat16)
    own = [parameter.dtype for parameter in model.network.parameters()]
    with model.compute():
        tokens, _ = Decoder(model, drawing(3), limit=LIMIT)(prefilled(model, tmp_path), fixed=False)
        decode = Decoder(model, drawing(3), limit=LIMIT)
        fixed, _ = decode(prefilled(model, tmp_path), fixed=True)
    assert fixed.tolist() == tokens.tolist()
    assert [parameter.dtype for parameter in model.network.parameters()] == own
    for parameter in model.network.parameters():
        parameter.add_(0.01)
    with model.compute():
        tokens, _ = Decoder(model, drawing(3), limit=LIMIT)(prefilled(model, tmp_path), fixed=False)
        again, _ = decode(prefilled(model, tmp_path), fixed=True)
    assert again.tolist() == tokens.tolist() != fixed.tolist()


@torch.no_grad()
def test_another_batch_starts_from_its_own_prompts(
    model: VisionLanguageModel, tmp_path: Path
) -> None:
    decode = Decoder(model, drawing(5), limit=LIMIT)
    decode(prefilled(model, tmp_path / "one", 4), fixed=True)
    fewer, _ = decode(prefilled(model, tmp_path / "two", 2), fixed=True)
    alone, _ = Decoder(model, drawing(5), limit=LIMIT)(
        prefilled(model, tmp_path / "two", 2), fixed=False
    )
    assert fewer.tolist() == alone.tolist()


@torch.no_grad()
def test_a_batch_that_was_not_a_number_spoils_no_later_one(
    model: VisionLanguageModel, tmp_path: Path
) -> None:
    decode = Decoder(model, drawing(5), limit=LIMIT)
    right, _ = decode(prefilled(model, tmp_path), fixed=True)
    weights = [parameter.clone() for parameter in model.network.parameters()]
    for parameter in model.network.parameters():
        parameter.fill_(torch.nan)
    decode(prefilled(model, tmp_path), fixed=True)
    for parameter, weight in zip(model.network.parameters(), weights, strict=True):
        parameter.copy_(weight)
    again, _ = decode(prefilled(model, tmp_path), fixed=True)
    assert again.tolist() == right.tolist()


@torch.no_grad()
def test_kept_caches_are_bounded_and_can_be_freed(
    model: VisionLanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = Decoder(model, drawing(5), limit=LIMIT)
    decode(prefilled(model, tmp_path, 2), fixed=True)
    decode(prefilled(model, tmp_path, 3), fixed=True)
    assert [rows for rows, _ in decode._steps] == [2 * EACH, 3 * EACH]
    held = sum(steps.size for steps in decode._steps.values())
    monkeypatch.setattr(decoding, "FIXED_BYTES", held)
    decode(prefilled(model, tmp_path, 2), fixed=True)
    assert [rows for rows, _ in decode._steps] == [3 * EACH, 2 * EACH]
    decode(prefilled(model, tmp_path, 1), fixed=True)  # the oldest leaves
    assert [rows for rows, _ in decode._steps] == [2 * EACH, EACH]
    decode.release()
    assert not decode._steps


@torch.no_grad()
def test_steps_are_kept_only_while_the_weights_lie_where_they_were(
    model: VisionLanguageModel, tmp_path: Path
) -> None:
    """A captured step reads them there."""
    decode = Decoder(model, drawing(5), limit=LIMIT)
    decode(prefilled(model, tmp_path, 2), fixed=True)
    (kept,) = decode._steps.values()
    decode(prefilled(model, tmp_path, 2), fixed=True)
    assert list(decode._steps.values()) == [kept]
    with ShadowWeights(model).lent():
        decode(prefilled(model, tmp_path, 2), fixed=True)
    (moved,) = decode._steps.values()
    assert moved is not kept


def test_the_bytes_of_a_fixed_cache_are_those_it_takes(
    model: VisionLanguageModel, tmp_path: Path
) -> None:
    prefix = prefilled(model, tmp_path)
    length = prefix.cache.get_seq_length()
    layers: list[Any] = prefix.cache.layers
    grows = sum(
        layer.keys.nbytes + layer.values.nbytes for layer in layers if hasattr(layer, "keys")
    )
    stays = sum(
        states[0].nbytes
        for layer in layers
        if not hasattr(layer, "keys")
        for states in (layer.conv_states, layer.recurrent_states)
    )
    assert cache_bytes(prefix.cache, length) == grows + stays
    assert cache_bytes(prefix.cache, 2 * length) == 2 * grows + stays


def test_few_numbers_of_rows_occur() -> None:
    sizes = [_few(rows) for rows in range(1, 225)]
    assert all(size >= rows for rows, size in enumerate(sizes, start=1))
    assert sorted(set(sizes)) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256]


def test_few_sizes_of_a_fixed_cache_occur() -> None:
    sizes = sorted({_capacity(tokens) for tokens in range(1, 4097)})
    assert sizes[:9] == [64, 80, 96, 112, 128, 160, 192, 224, 256]
    assert len(sizes) == 25
    assert all(tokens <= _capacity(tokens) <= max(64, 1.25 * tokens) for tokens in range(1, 4097))


def test_the_run_can_stop_at_every_token(model: VisionLanguageModel, tmp_path: Path) -> None:
    class StoppedError(Exception): ...

    calls = 0

    def poll() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise StoppedError

    for fixed in (True, False):
        calls = 0
        decode = Decoder(model, drawing(1), limit=LIMIT, hooks=Hooks(poll=poll))
        with pytest.raises(StoppedError), torch.no_grad():
            decode(prefilled(model, tmp_path), fixed=fixed)


@torch.no_grad()
def test_a_kept_cache_counts_as_room_for_itself(
    small_qwen3vl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(small_qwen3vl)
    decode = Decoder(model, drawing(3), limit=LIMIT)
    seen: list[int] = []

    def room() -> int:
        seen.append(len(decode._steps))
        return decoding.FIXED_BYTES

    monkeypatch.setattr(decode, "_room", room)
    for _ in range(2):
        decode(prefilled(model, tmp_path), fixed=True)
    assert seen == [0, 1]


@torch.no_grad()
def test_large_caches_and_copies_are_freed_between_rollouts(
    small_qwen35: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(small_qwen35, precision=torch.bfloat16)
    decode = Decoder(model, drawing(3), limit=LIMIT)
    with model.compute():
        decode(prefilled(model, tmp_path), fixed=True)
    decode.trim()
    assert decode._steps
    assert decode._weights is not None
    monkeypatch.setattr(decoding, "FIXED_BYTES", decode._weights.size)
    decode.trim()
    assert not decode._steps
    assert decode._weights is None


@torch.no_grad()
def test_no_copies_of_weights_are_made_where_no_cache_fits(
    small_qwen35: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(small_qwen35, precision=torch.bfloat16)
    decode = Decoder(model, drawing(3), limit=LIMIT)
    monkeypatch.setattr(decoding, "FIXED_BYTES", 0)
    with model.compute():
        decode(prefilled(model, tmp_path), fixed=True)
    assert decode._weights is None


@torch.no_grad()
def test_the_cache_of_the_prompts_is_freed_once_it_was_copied(
    model: VisionLanguageModel, tmp_path: Path
) -> None:
    prefix = prefilled(model, tmp_path)
    Decoder(model, drawing(3), limit=LIMIT)(prefix, fixed=True)
    assert not prefix.cache.layers


@torch.no_grad()
def test_a_tail_has_few_sizes(
    small_qwen3vl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(small_qwen3vl)
    sizes: list[int] = []
    monkeypatch.setattr(decoding, "STRETCH", 1)
    monkeypatch.setattr(decoding, "CHECK_EVERY", 1)
    monkeypatch.setattr(decoding, "_capacity", lambda tokens: tokens)
    few = decoding._few
    monkeypatch.setattr(decoding, "_few", lambda rows: sizes.append(rows) or few(rows))
    # The first cache is large, so that it is exchanged; the others are not.
    prefix = prefilled(model, tmp_path)
    whole = cache_bytes(prefix.cache, prefix.cache.get_seq_length() + LIMIT)
    monkeypatch.setattr(decoding, "LARGE_BYTES", whole)
    decode = Decoder(model, drawing(3), limit=LIMIT)
    decode(prefix, fixed=True)
    assert sizes
    assert {rows for rows, _ in decode._steps} == {EACH * 4, *map(few, sizes)}


@torch.no_grad()
def test_states_of_a_prefill_hold_no_more_memory_than_their_own(
    small_qwen35: Path, tmp_path: Path
) -> None:
    model = make_model(small_qwen35)
    example = make_examples(tmp_path, 1)[0]
    prompt = model.processor.encode(open_image(example.image), example.question)
    states = [
        state
        for layer in model.prefill([prompt]).cache.layers
        if isinstance(layer, AssignedLinearLayer)
        for state in layer.conv_states.values()
        if state is not None
    ]
    assert states
    for state in states:
        assert state.untyped_storage().nbytes() == state.nbytes


@torch.no_grad()
def test_a_captured_step_finds_the_head_rounded(
    small_qwen35: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would round the head again for every token."""
    model = make_model(small_qwen35)
    weight = plain_head(model.head)
    assert weight is not None
    head = model.fast_head = Head(weight, torch.bfloat16)
    is_rounded: list[bool] = []
    build = FixedSteps.__init__

    def built(steps: FixedSteps, *inputs: Any, **options: Any) -> None:
        is_rounded.append(head._source is not None)
        build(steps, *inputs, **options)

    monkeypatch.setattr(FixedSteps, "__init__", built)
    decode = Decoder(model, drawing(3), limit=LIMIT)
    for part in range(2):
        decode(prefilled(model, tmp_path / str(part)), fixed=True)
        decode.release()
        head.forget()
    assert is_rounded == [True, True]


@torch.no_grad()
def test_a_known_size_is_captured_at_once_and_if_that_fails_as_before(
    small_qwen35: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(small_qwen35)
    asked: list[bool] = []
    failing: list[bool] = []
    build = FixedSteps.__init__

    def built(steps: FixedSteps, *inputs: Any, is_known: bool, **options: Any) -> None:
        asked.append(is_known)
        if is_known and failing[-1]:
            raise RuntimeError("a kernel was to be loaded")
        build(steps, *inputs, is_known=is_known, **options)

    monkeypatch.setattr(FixedSteps, "__init__", built)
    decode = Decoder(model, drawing(3), limit=LIMIT)
    for fails in (False, False, True):
        failing.append(fails)
        tokens, _ = decode(prefilled(model, tmp_path / "prompts"), fixed=True)
        decode.release()
    assert asked == [False, True, True, False]
    assert decode._can_capture
    expected, _ = Decoder(model, drawing(3), limit=LIMIT)(
        prefilled(model, tmp_path / "prompts"), fixed=False
    )
    assert torch.equal(tokens, expected)
