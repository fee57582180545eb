"""A teacher that is another model, in host memory: it says what it would say on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from run_fixtures import OFTEN, Silent, stop_at, tiny
from run_states import assert_same_end
from shapes import make_pictures
from small_models import build_small_model
from stage_fixtures import draw, make_examples, make_model
from torch import Tensor, nn

from bas_opd.audit.subject import Request, Subject
from bas_opd.cli.plan import lines
from bas_opd.commands.plan import plan
from bas_opd.compute import streaming
from bas_opd.compute.streaming import HostTensors
from bas_opd.compute.world import World
from bas_opd.config import Config
from bas_opd.data.views import crop_view
from bas_opd.errors import OutOfMemory, PreemptionError
from bas_opd.learn import Learner
from bas_opd.model import loading, sharding, vlm
from bas_opd.model.folder import model_hashes
from bas_opd.model.loading import open_model
from bas_opd.model.sharding import Shards
from bas_opd.model.size import model_size
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.rollout import Sampler
from bas_opd.run import footprint, loop, state
from bas_opd.run.state import build_method
from bas_opd.run.verify import verify
from bas_opd.teacher import FrozenTeacher, LocalScores
from bas_opd.types import Rollouts

LENGTHS = "model.max_pixels or rollout.max_response_tokens"
FORMS = ("optim.offload=false", "optim.offload=true")
Make = Callable[..., Config]


def opened(folder: Path, *, on_host: bool, precision: Any = "float32") -> VisionLanguageModel:
    model = open_model(folder, device="cpu", precision=precision, frozen=True, on_host=on_host)
    if on_host:
        model.shard(World(), on_host=True)
    return model


def held(model: VisionLanguageModel) -> int:
    """Return the bytes of the network on the device."""
    return sum(p.untyped_storage().nbytes() for p in model.network.parameters())


def said(scores: LocalScores) -> list[Tensor]:
    return [chunk.logits for chunk in scores.chunks(scores.rows, 8)]


@contextmanager
def watched(model: VisionLanguageModel, look: Callable[[nn.Module], None]) -> Iterator[None]:
    """Look at every module when it computes."""
    hooks = [
        module.register_forward_pre_hook(lambda module, _: look(module))
        for module in model.network.modules()
    ]
    yield
    for hook in hooks:
        hook.remove()


@pytest.fixture(scope="module")
def rollouts(small_qwen35: Path, tmp_path_factory: pytest.TempPathFactory) -> Rollouts:
    return draw(make_model(small_qwen35), make_examples(tmp_path_factory.mktemp("pictures")))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("family", "tied"),
    [("qwen3_5", True), ("qwen3_5", False), ("qwen3_vl", False), ("qwen2_5_vl", True)],
)
def test_it_says_the_same_bits_layer_by_layer(
    family: Any, tied: bool, precision: str, rollouts: Rollouts, tmp_path: Path
) -> None:
    folder = build_small_model(
        tmp_path / "larger", family=family, hidden=128, layers=8, tied=tied, seed=5
    )
    resident, host = (opened(folder, on_host=each, precision=precision) for each in (False, True))
    most = 0

    def look(_: nn.Module) -> None:
        nonlocal most
        most = max(most, held(host))

    for rows, tokens in (((4, 0, 1), 16_384), ((0, 2), 1)):
        theirs = FrozenTeacher(resident, crop_view, tokens_per_batch=tokens).score(rollouts, rows)
        with watched(host, look):
            teacher = FrozenTeacher(host, crop_view, tokens_per_batch=tokens)
            ours = teacher.score(rollouts, rows)
        assert held(host) == 0
        assert (ours.rows, ours.scored_tokens) == (theirs.rows, theirs.scored_tokens)
        assert ours.processed_tokens == theirs.processed_tokens
        assert ours.prefilled_prompts == theirs.prefilled_prompts
        for one, other in zip(said(ours), said(theirs), strict=True):
            assert torch.equal(one, other)
    size = model_size(folder, precision=getattr(torch, precision), frozen=True, on_host=True)
    assert most == size.pass_weights + size.exchanged < held(resident) / 2
    assert host.shards is not None
    kept = sum(rows.numel() * rows.element_size() for rows in host.shards.rows.values())
    assert kept == size.weights == held(resident)


def test_a_layer_has_its_weights_when_it_computes_and_not_after(
    rollouts: Rollouts, tmp_path: Path
) -> None:
    host = opened(build_small_model(tmp_path / "larger", layers=8, tied=False), on_host=True)
    layers = list(host._core.model.language_model.layers)
    seen: list[tuple[int, ...]] = []

    def has_weights(module: nn.Module) -> bool:
        return all(p.untyped_storage().nbytes() for p in module.parameters())

    def look(module: nn.Module) -> None:
        assert has_weights(module)
        if module in layers:
            seen.append(tuple(n for n, layer in enumerate(layers) if has_weights(layer)))

    with watched_layers(layers, look):
        FrozenTeacher(host, crop_view).score(rollouts, (4, 0))
    # Once for the prompts and once for the responses, which begin with the embedding.
    once = [(n, n + 1) for n in range(7)] + [(7,)]
    assert seen == [*once, *once]
    assert not any(p.untyped_storage().nbytes() for p in host.head.parameters())


@contextmanager
def watched_layers(layers: list[nn.Module], look: Callable[[nn.Module], None]) -> Iterator[None]:
    """Look at layers between their own hooks and their computation."""
    whole = [layer.forward for layer in layers]

    def looking(layer: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            look(layer)
            return forward(*args, **options)

        return run

    for layer, forward in zip(layers, whole, strict=True):
        layer.forward = looking(layer, forward)  # type: ignore[method-assign]
    yield
    for layer, forward in zip(layers, whole, strict=True):
        layer.forward = forward  # type: ignore[method-assign]


def test_full_memory_in_a_pass_makes_smaller_batches_with_the_same_bits(
    rollouts: Rollouts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build_small_model(tmp_path / "larger", layers=8)
    rows = (4, 0, 1)
    host = opened(folder, on_host=True)
    layer, calls = host._core.model.language_model.layers[3], 0
    forward = layer.forward

    def crowded(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB.")
        return forward(*args, **options)

    monkeypatch.setattr(layer, "forward", crowded)
    teacher = FrozenTeacher(host, crop_view)
    found = teacher.score(rollouts, rows)
    assert teacher.tokens_per_batch == 16_384 // 2
    assert held(host) == 0
    expected = FrozenTeacher(opened(folder, on_host=False), crop_view).score(rollouts, rows)
    for one, other in zip(said(found), said(expected), strict=True):
        assert torch.equal(one, other)


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parameters that were copied from host memory."""
    begin, copied = Shards._begin_upload, list[str]()

    def beginning(shards: Shards, bucket: Any, uploads: Any) -> Any:
        copied.extend(bucket.names)
        return begin(shards, bucket, uploads)

    monkeypatch.setattr(Shards, "_begin_upload", beginning)
    return copied


def layers_of(names: list[str]) -> list[int]:
    """Return which layers of the language model were copied, in their order."""
    found = [int(name.split(".layers.")[1].split(".")[0]) for name in names if ".layers." in name]
    return [number for number, _ in groupby(found)]


def test_a_pass_that_fails_copies_no_further_layer(
    rollouts: Rollouts, tmp_path: Path, uploads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = opened(build_small_model(tmp_path / "larger", layers=8, tied=False), on_host=True)

    def failing(*_: Any, **__: Any) -> None:
        full = Mock(side_effect=torch.OutOfMemoryError("There is no room for another layer."))
        monkeypatch.setattr(Shards, "_begin_upload", full)
        raise ValueError("This is the first error.")

    monkeypatch.setattr(host._core.model.language_model.layers[3], "forward", failing)
    with pytest.raises(ValueError, match="the first error"):
        FrozenTeacher(host, crop_view).score(rollouts, (4, 0))
    assert layers_of(uploads) == [0, 1, 2, 3, 4]
    assert held(host) == 0


def test_a_pass_that_needs_no_more_layers_copies_no_more(
    rollouts: Rollouts, tmp_path: Path, uploads: list[str]
) -> None:
    folder = build_small_model(tmp_path / "larger", layers=8, tied=False)
    host, resident = (opened(folder, on_host=each) for each in (True, False))
    for parameter in resident.network.parameters():
        parameter.data = parameter.data.clone()
    prompts = [host.processor.encode(*crop_view(rollouts.examples[0]))]
    with torch.no_grad(), host.gathered():
        before = held(host)
        # A response of one token is predicted by its prompt.
        for _ in range(2):
            prefix = host.exchanging(lambda: host.prefill(prompts), share_prompts=True)
            assert torch.equal(prefix.last_hidden, resident.prefill(prompts).last_hidden)
            assert held(host) == before
    assert layers_of(uploads) == [*range(8), *range(8)]


def test_its_head_is_cast_where_it_computes(larger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("meta")
    monkeypatch.setattr(loading, "resolve_device", lambda _: device)
    monkeypatch.setattr(vlm, "is_fast", lambda _: True)
    model = open_model(larger, precision="bfloat16", frozen=True, on_host=True)
    assert model.fast_head is not None
    assert model.fast_head.rounded().device == device


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_head_comes_to_the_device_in_pieces_and_is_cast_there(
    dtype: torch.dtype, larger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = opened(larger, on_host=True).shards
    assert shards is not None
    rows = shards.rows["lm_head.weight"].detach()
    monkeypatch.setattr(sharding, "PIECE", 1000)
    moved, to = [], Tensor.to

    def moving(tensor: Tensor, *arguments: Any, **options: Any) -> Tensor:
        moved.append((tensor.numel(), arguments, options))
        return to(tensor, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "to", moving)
        found = shards.whole("lm_head.weight", rows, dtype)
    assert torch.equal(found, rows.to(dtype))
    assert found.data_ptr() != rows.data_ptr()
    assert sum(count for count, *_ in moved) == rows.numel()
    assert max(count for count, *_ in moved) <= 1000
    for _, arguments, options in moved:  # No type: the host casts nothing.
        assert (arguments, options) == ((torch.device("cpu"),), {"non_blocking": True})


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("larger")
    return build_small_model(folder, hidden=128, layers=8, tied=False, seed=5)


@pytest.fixture
def config(small_qwen35: Path, larger: Path, tmp_path: Path) -> Make:
    data = make_pictures(tmp_path / "data", n=16, seed=1).folder
    path = f"teacher.path={larger}"
    return lambda output, *overrides: tiny(
        small_qwen35, data, tmp_path / output, *OFTEN, path, *overrides
    )


def test_a_run_is_the_same_in_both_forms_and_either_resumes_the_other(
    config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    resident, offload = (loop.train(config(form, form), Silent()) for form in FORMS)
    assert_same_end(offload.directory, resident.directory)
    assert model_hashes(offload.model) == model_hashes(resident.model)
    assert verify(offload.directory, draws=True).is_sound
    for first, second in (FORMS, FORMS[::-1]):
        with monkeypatch.context() as patch:
            stop_at(patch, 14)
            with pytest.raises(PreemptionError):
                loop.train(config(f"then {second}", first), Silent())
        resumed = loop.train(config(f"then {second}", second), Silent())
        assert_same_end(resumed.directory, resident.directory)


def test_a_run_and_an_audit_keep_it_in_host_memory(
    config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "open_model", spied := Mock(wraps=state.open_model))
    run = loop.train(config("run", FORMS[1]), Silent()).directory
    subject = Subject(Request(run=run))
    subject.restore_newest()
    teacher = subject.method.stages.teacher
    assert isinstance(teacher, FrozenTeacher)
    assert teacher.model.shards is not None
    assert teacher.model.shards.is_on_host
    assert held(teacher.model) == 0
    assert [
        call.kwargs["on_host"] for call in spied.call_args_list if "on_host" in call.kwargs
    ] == [
        True,
        True,
    ]
    other = build_method(config("other", FORMS[0])).stages.teacher  # type: ignore[attr-defined]
    assert other.model.shards is None


def test_its_weights_are_read_into_host_memory_alone(
    larger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = torch.device("meta")  # Whatever is put there is lost.
    monkeypatch.setattr(loading, "resolve_device", lambda _: device)
    model = open_model(larger, precision="float32", frozen=True, on_host=True)
    assert model.device == device
    assert {p.device.type for p in model.network.parameters()} == {"cpu"}


@pytest.mark.parametrize("owner", [VisionLanguageModel, Sampler, Learner])
def test_full_memory_is_told_with_what_is_not_set_yet(
    owner: Any, config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {Sampler: "_draw", Learner: "_micro_batch"}.get(owner, "response_hidden")
    full = Mock(side_effect=torch.OutOfMemoryError("Tried to allocate 2.00 GiB."))
    monkeypatch.setattr(owner, name, full)
    other = "choose a smaller teacher.path or a teacher.server, or use a device with more memory."
    for form, said in (
        (FORMS[1:], f", or train adapters with lora.rank, or {other}"),
        ((FORMS[1], "lora.rank=2"), f", or {other}"),
        ((), f", or set optim.offload=true, or train adapters with lora.rank, or {other}"),
    ):
        settings = ("model.gradient_checkpointing=true", *form)
        with pytest.raises(OutOfMemory, match="smallest batch") as told:
            loop.train(config(f"{len(form)} {owner.__name__}", *settings), Silent())
        assert str(told.value).endswith(f" Lower {LENGTHS}{said}")


def test_so_is_memory_that_is_full_elsewhere(config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Mock(side_effect=torch.OutOfMemoryError("Tried to allocate 2.00 GiB."))
    monkeypatch.setattr(loop, "build_method", full)
    for form, is_told in zip(FORMS, (True, False), strict=True):
        with pytest.raises(OutOfMemory, match="where no smaller batch helps") as told:
            loop.train(config("run", form), Silent())
        assert ("set optim.offload=true" in str(told.value)) is is_told
        assert "teacher.server" in str(told.value)
        assert "gradient_checkpointing" not in str(told.value)


def test_so_is_a_rank_without_memory_to_exchange(
    config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "load_policy", spied := Mock(side_effect=KeyError))
    with pytest.raises(KeyError):
        build_method(config("run", FORMS[1], "model.gradient_checkpointing=true"))
    world: World = spied.call_args.args[1]
    text = str(world._without_memory(MemoryError("It is full.")))
    assert "teacher.tokens_per_batch, or train adapters with lora.rank, or choose" in text
    assert "optim.offload" not in text


def test_a_plan_says_where_it_is(config: Make) -> None:
    resident, offload = (list(lines(plan(config("run", form)))) for form in FORMS)
    several = list(lines(plan(config("run", FORMS[1]), gpus=2)))
    for said, is_shown in ((resident, False), (offload, True), (several, True)):
        layers = [line for line in said if line.startswith("    its layers ")]
        assert bool(layers) is is_shown
        assert all(line.endswith(", while it scores") for line in layers)
    assert any("its head" in line and "until the update" in line for line in offload)
    assert any(line.startswith("  teacher") and "in host memory" in line for line in several)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_host_never_has_it_twice_while_it_is_loaded(
    precision: Any, tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build_small_model(tmp_path / "larger", hidden=128, layers=8, tied=tied)
    monkeypatch.setattr(streaming, "PIECE", 2**14)
    most, taken = 0, 0

    class Watched(HostTensors[str]):
        def __init__(self, *arguments: Any) -> None:
            nonlocal most, taken
            super().__init__(*arguments)
            taken += self.flat.nbytes
            most = max(most, held(model) + taken)

    size = model_size(folder, precision=getattr(torch, precision), frozen=True, on_host=True)
    read = loading.load_model(folder, device=torch.device("cpu"))
    as_read = sum(p.nbytes for p in read.parameters())
    model = open_model(folder, device="cpu", precision=precision, frozen=True, on_host=True)
    assert held(model) == size.weights
    monkeypatch.setattr(sharding, "HostTensors", Watched)
    model.shard(World(), on_host=True)
    assert held(model) == 0
    assert max(as_read, most) <= size.loading < 1.1 * as_read
    if precision == "bfloat16":
        assert most < 1.15 * size.weights < as_read


def test_a_plan_and_the_check_know_what_loading_takes(
    config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = config("run", FORMS[1], "lora.rank=2")
    memory = plan(huge).memory
    assert memory is not None
    assert memory.read == memory.host > memory.locked + memory.copied
    assert any(line.startswith("  to load") for line in lines(plan(huge)))
    monkeypatch.setattr(footprint, "free_host_memory", lambda: memory.read)
    footprint.check_host(memory)
    monkeypatch.setattr(footprint, "free_host_memory", lambda: memory.read - 1)
    with pytest.raises(OutOfMemory, match=r"to load the weights takes .* memory, or choose a sma"):
        footprint.check_host(memory)


def test_a_host_too_small_for_it_is_refused(config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = plan(config("run", FORMS[1])).memory
    assert memory is not None
    monkeypatch.setattr(footprint, "free_host_memory", lambda: memory.host - memory.host_teacher)
    with pytest.raises(OutOfMemory, match=r"optim\.offload is true"):
        loop.train(config("run", FORMS[1]), Silent())
