"""Prompts that threads encode ahead of time are those that the loop encodes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from stage_fixtures import make_examples
from torch import Tensor

from bas_opd.compute.clock import Clock
from bas_opd.data.views import full_view
from bas_opd.errors import DataError, PreemptionError
from bas_opd.model import encoding
from bas_opd.model.encoding import PINNED_BYTES, ViewEncoder
from bas_opd.model.processing import Processor
from bas_opd.types import Example

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.fixture
def processor(small_qwen35: Path) -> Processor:
    return Processor.load(small_qwen35)


class Watched:
    """The full view, which notes what was opened where, and opens nothing before it may."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.opened: list[tuple[str, bool]] = []
        self.begun, self.gate = threading.Event(), threading.Event()
        if is_open:
            self.gate.set()

    def __call__(self, example: Example) -> Any:
        self.begun.set()
        self.gate.wait(20)
        self.opened.append((example.id, threading.current_thread() is threading.main_thread()))
        return full_view(example)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.opened]


def wait_until(is_so: Any) -> None:
    end = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_encode_the_same_prompts(
    threads: int, processor: Processor, tmp_path: Path
) -> None:
    examples, view = make_examples(tmp_path, 8), Watched()
    ahead = ViewEncoder(processor, view, threads=threads)
    ahead.expect(examples)
    for example in examples:
        ours, theirs = ahead(example), processor.encode(*full_view(example))
        assert torch.equal(ours.input_ids, theirs.input_ids)
        assert torch.equal(ours.pixel_values, theirs.pixel_values)
        assert torch.equal(ours.grid, theirs.grid)
    assert sorted(view.names) == sorted(example.id for example in examples)
    assert not any(is_main for _, is_main in view.opened)


def test_without_threads_nothing_is_opened_before_it_is_asked_for(
    processor: Processor, tmp_path: Path
) -> None:
    examples, view = make_examples(tmp_path), Watched()
    encoder = ViewEncoder(processor, view)
    encoder.expect(examples)
    encoder(examples[2])
    assert view.opened == [("e2", True)]


@pytest.mark.parametrize("allowed", [0, 1])
def test_where_no_thread_can_start_pictures_are_opened_when_they_are_needed(
    allowed: int, processor: Processor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples, view, started = make_examples(tmp_path, 6), Watched(), 0
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        nonlocal started
        if started == allowed:
            raise RuntimeError("can't start new thread")
        started += 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    encoder = ViewEncoder(processor, view, threads=3)
    encoder.expect(examples)
    for example in examples:
        assert torch.equal(
            encoder(example).input_ids, processor.encode(*full_view(example)).input_ids
        )
    assert sorted(view.names) == sorted(example.id for example in examples)
    # A thread that has nothing to do ends, and no other may start then.
    assert any(not is_main for _, is_main in view.opened) == (allowed == 1)


@pytest.mark.parametrize("pins", [True, False])
def test_pictures_are_pinned_where_a_gpu_copies_them_and_memory_allows_it(
    pins: bool, processor: Processor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Tensor] = []

    def pinned(values: Tensor) -> Tensor:
        asked.append(values)
        if not pins:
            raise RuntimeError("CUDA error: OS call failed or operation not supported")
        return values.clone()

    monkeypatch.setattr(Tensor, "pin_memory", pinned)
    (example,) = make_examples(tmp_path, 1)
    expected = ViewEncoder(processor, full_view)(example).pixel_values
    assert not asked
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert ViewEncoder(processor, full_view)(example).pixel_values.nbytes < PINNED_BYTES
    assert not asked  # Small ones are copied as they are.
    monkeypatch.setattr(encoding, "PINNED_BYTES", expected.nbytes)
    found = ViewEncoder(processor, full_view)(example).pixel_values
    assert len(asked) == 1
    assert (found is asked[0]) == (not pins)
    assert torch.equal(found, expected)


def test_the_next_batch_is_opened_while_the_loop_does_something_else(
    processor: Processor, tmp_path: Path
) -> None:
    examples, view = make_examples(tmp_path, 6), Watched()
    encoder = ViewEncoder(processor, view, threads=1)
    encoder.expect(examples)
    for example in examples[:3]:
        encoder(example)
    wait_until(lambda: len(view.opened) == 6)
    assert view.names == [example.id for example in examples]  # those needed first, first
    encoder.expect([*examples[3:], *examples[:3]])
    for example in examples[3:]:
        encoder(example)
    assert view.names.count("e4") == 1


def test_what_is_no_longer_expected_is_not_opened(processor: Processor, tmp_path: Path) -> None:
    examples, view = make_examples(tmp_path, 6), Watched(is_open=False)
    encoder = ViewEncoder(processor, view, threads=1)
    encoder.expect(examples)
    encoder.expect(examples[4:])
    view.gate.set()
    encoder(examples[5])
    assert set(view.names) <= {"e0", "e4", "e5"}  # The thread had begun with the first.
    encoder.close()
    assert encoder(examples[4]).length > 0


def test_a_damaged_picture_is_the_error_of_the_loop_and_the_rest_is_left(
    processor: Processor, tmp_path: Path
) -> None:
    examples, gate, opened = make_examples(tmp_path, 6), threading.Event(), set[str]()

    def view(example: Example) -> Any:
        if example.id == "e2":
            gate.wait(20)
        opened.add(example.id)
        return full_view(example)

    examples[1].image.write_bytes(examples[1].image.read_bytes()[:300])
    with pytest.raises(DataError) as known:
        ViewEncoder(processor, full_view)(examples[1])
    encoder = ViewEncoder(processor, view, threads=1)
    encoder.expect(examples)
    encoder(examples[0])
    with pytest.raises(DataError) as found:
        encoder(examples[1])
    assert str(found.value) == str(known.value)
    gate.set()
    time.sleep(0.2)
    assert opened <= {"e0", "e1", "e2"}


@pytest.mark.parametrize("error", [MemoryError(), DataError("The picture is away.")])
def test_a_failure_ahead_of_time_is_not_final(
    error: Exception, processor: Processor, tmp_path: Path
) -> None:
    examples, opened = make_examples(tmp_path), list[str]()

    def view(example: Example) -> Any:
        opened.append(example.id)
        if opened.count("e0") == 1 and example.id == "e0":
            raise error
        return full_view(example)

    encoder = ViewEncoder(processor, view, threads=1)
    encoder.expect(examples[:2])
    wait_until(lambda: len(opened) == 2)
    assert torch.equal(
        encoder(examples[0]).pixel_values, processor.encode(*full_view(examples[0])).pixel_values
    )
    encoder(examples[1])
    assert opened == ["e0", "e1", "e0"]


def threads_of_pictures() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("pictures")]


def test_threads_end_when_nothing_is_left_to_open(processor: Processor, tmp_path: Path) -> None:
    examples, view = make_examples(tmp_path, 6), Watched()
    encoder = ViewEncoder(processor, view, threads=2)
    for _ in range(2):
        encoder.expect(examples)
        for example in examples:
            encoder(example)
        wait_until(lambda: not threads_of_pictures())
    assert len(view.opened) == 12
    assert not any(is_main for _, is_main in view.opened)


def test_at_most_the_given_number_of_pictures_is_opened_at_once(
    processor: Processor, tmp_path: Path
) -> None:
    examples, view = make_examples(tmp_path, 6), Watched(is_open=False)
    encoder = ViewEncoder(processor, view, threads=2)
    encoder.expect(examples[:3])
    encoder.expect(examples[3:])
    assert len(threads_of_pictures()) == 2
    view.gate.set()
    encoder.close()


def test_closing_waits_for_a_picture_that_is_being_opened_but_not_for_ever(
    processor: Processor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples, view = make_examples(tmp_path), Watched(is_open=False)
    encoder = ViewEncoder(processor, view, threads=1)
    encoder.expect(examples)
    view.begun.wait(20)
    threading.Timer(0.3, view.gate.set).start()
    encoder.close()
    assert view.names == ["e0"]
    assert not threads_of_pictures()
    view.begun.clear()
    view.gate.clear()
    encoder.expect(examples)
    view.begun.wait(20)
    monkeypatch.setattr(encoding, "PATIENCE_SECONDS", 0.1)
    encoder.close()
    assert threads_of_pictures()
    view.gate.set()
    wait_until(lambda: not threads_of_pictures())


HANGING = """
import threading
from bas_opd.model.encoding import ViewEncoder
from bas_opd.types import Example

begun = threading.Event()

def view(example):
    begun.set()
    threading.Event().wait(600)

encoder = ViewEncoder(None, view, threads=1)
encoder.expect([Example(id="a", image=None, question="?")])
begun.wait()
encoder.close()
"""


def test_a_picture_that_hangs_does_not_keep_the_process() -> None:
    subprocess.run([sys.executable, "-c", HANGING], check=True, timeout=90)


def test_a_picture_that_hangs_is_a_sentence(
    processor: Processor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples, view = make_examples(tmp_path), Watched(is_open=False)
    encoder = ViewEncoder(processor, view, threads=1)
    encoder.expect(examples)
    monkeypatch.setattr(encoding, "LONGEST_SECONDS", 0.5)
    with pytest.raises(DataError, match=r"example 'e0' \(.*0\.png\) was not open after 0\.5 sec"):
        encoder(examples[0])
    view.gate.set()
    encoder.close()
    assert view.names == ["e0"]


def test_a_run_that_waits_for_a_picture_can_be_stopped(
    processor: Processor, tmp_path: Path
) -> None:
    def poll() -> None:
        raise PreemptionError("SIGTERM")

    examples, view = make_examples(tmp_path), Watched(is_open=False)
    encoder = ViewEncoder(processor, view, threads=1, poll=poll)
    encoder.expect(examples)
    with pytest.raises(PreemptionError):
        encoder(examples[0])
    view.gate.set()
    encoder.close()


def test_time_is_waited_for_data_that_is_not_ready(processor: Processor, tmp_path: Path) -> None:
    examples, clock, view = make_examples(tmp_path), Clock(), Watched(is_open=False)
    encoder = ViewEncoder(processor, view, clock, threads=1)
    encoder.expect(examples[:2])
    threading.Timer(0.3, view.gate.set).start()
    encoder(examples[0])
    assert clock.read_waited() > 0.2
    wait_until(lambda: len(view.opened) == 2)
    time.sleep(0.2)
    encoder(examples[1])
    assert clock.read_waited() == 0.0
    encoder(examples[2])  # which nobody announced
    assert clock.read_waited() > 0.0
