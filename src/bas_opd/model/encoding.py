"""Prompts of examples, whose pictures threads can open ahead of time.

Threads suffice: Pillow and numpy release the interpreter while they decode, resize and copy, which
is nearly all of the work. They need no second copy of the libraries and no shared memory, end with
the process however it ends, and raise the errors that the loop would raise.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from bas_opd.compute.clock import Clock
from bas_opd.model.processing import Pixels, Processor
from bas_opd.types import Example, Prompt, View


class ViewEncoder:
    """Encodes what a view shows of examples; those that were announced, in threads.

    The text is tokenised where the prompt is asked for: tokenizers are not safe in threads.
    """

    def __init__(
        self, processor: Processor, view: View, clock: Clock | None = None, *, threads: int = 0
    ) -> None:
        self.processor = processor
        self.view = view
        self._clock = clock or Clock()
        self._pool = ThreadPoolExecutor(threads, "pictures") if threads else None
        self._coming: dict[str, Future[tuple[Pixels, str]]] = {}

    @property
    def is_ahead(self) -> bool:
        """Whether examples are encoded before they are asked for."""
        return self._pool is not None

    def expect(self, examples: Iterable[Example] = ()) -> None:
        """Start on examples that will be asked for, in this order; drop all others."""
        if self._pool is None:
            return
        dropped, self._coming = self._coming, {}
        for example in examples:
            if example.id not in self._coming:
                started = dropped.pop(example.id, None)
                self._coming[example.id] = started or self._pool.submit(self._look, example)
        for each in dropped.values():
            each.cancel()

    def __call__(self, example: Example) -> Prompt:
        """Return the prompt of an example."""
        coming = self._coming.pop(example.id, None)
        try:
            if coming is not None and coming.done():
                pixels, text = coming.result()
            else:
                with self._clock.waiting():
                    pixels, text = self._look(example) if coming is None else coming.result()
            return self.processor.prompt(pixels, text)
        except BaseException:
            self.expect()
            raise

    def close(self) -> None:
        """Open no further picture."""
        self.expect()

    def _look(self, example: Example) -> tuple[Pixels, str]:
        image, text = self.view(example)
        return self.processor.look(image), text
