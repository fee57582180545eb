"""The speed of an evaluation: answering many questions at once, scoring by rule, resuming.

    python benchmarks/evaluation.py

The shipped small model answers FineSearch questions, several at once and one at a time. Its answers
are short, so it is also made to write longer ones. Required: batched decoding is at least three
times as fast. Prefill is bound by arithmetic on a CPU, which a batch does not reduce, so the total
gain grows with the length of the answers. Next, several questions are about each picture, as in
POPE: it is encoded and prefilled once, or once for each question. Then answers to a set of POPE's
layout and size are scored by rule (required: within 5 s), and a new process resumes the finished
evaluation (required: within 2 s).
"""

from __future__ import annotations

import argparse
import io
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from transformers.utils import logging

from bas_opd.data.finesearch import make_finesearch
from bas_opd.evaluate.answering import LocalAnswerer, ModelAnswers
from bas_opd.evaluate.benchmarks import LoadedSet, benchmark
from bas_opd.evaluate.evaluation import Evaluation
from bas_opd.evaluate.questions import Output, Picture, Question
from bas_opd.evaluate.samples import SCORES
from bas_opd.evaluate.weights import Checkpoint
from bas_opd.files import hash_of
from bas_opd.model.base import LEARNT_KINDS, small_base
from bas_opd.model.loading import load_model
from bas_opd.model.processing import Processor
from bas_opd.model.vlm import AnyPrompt, Prefix, VisionLanguageModel
from bas_opd.rollout.greedy import Greedy
from bas_opd.types import Prompt

REQUIRED_RATIO, SCORING_SECONDS, RESUMING_SECONDS = 3.0, 5.0, 2.0
SPLITS, PER_SPLIT = ("adversarial", "popular", "random"), 3000
THINGS = ("dog", "traffic light", "dining table", "backpack", "bird")
SAID = (
    "{Yes}",
    "{Yes}.",
    "{Yes}, there {is} a {thing} in the image.",
    "**{Yes}**",
    "The answer is {yes}.",
    "There {is} a {thing} in the picture, next to the window.",
    "<think>I look for a {thing}. I see a street with cars.</think>\n\n{Yes}",
    "On the left stands a table with several things on it, and a person behind it. The light comes "
    "from a window on the right. Everything else is in shade.\n\nFinal answer: {Yes}",
    "\\boxed{{{yes}}}",
)
"""How models answer POPE: mostly in a word, some in a sentence, some after a paragraph."""


class Watched(VisionLanguageModel):
    """Measures the seconds of prefill."""

    reading = 0.0

    def prefill(self, prompts: Sequence[AnyPrompt]) -> Prefix:
        started = perf_counter()
        prefix = super().prefill(prompts)
        self.reading += perf_counter() - started
        return prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The seconds of one round of answers."""

    reading: float
    decoding: float


class Quiet:
    """Shows nothing."""

    def start(self, total: int, what: str = "steps", *, done: int = 0) -> None: ...
    def advance(self, count: int = 1) -> None: ...
    def message(self, text: str) -> None: ...


class Scripted:
    """Gives scripted answers in place of a model."""

    def answers(self, questions: Sequence[Question]) -> Iterator[tuple[int, Output]]:
        for place in range(len(questions)):
            is_yes = place % 5 < 2
            words = {"is": "is" if is_yes else "is not", "thing": THINGS[place % len(THINGS)]}
            word = "yes" if is_yes else "no"
            said = SAID[place % len(SAID)].format(yes=word, Yes=word.capitalize(), **words)
            yield place, Output(text=said, is_cut=False)


def main() -> None:
    """Measure all three and print them."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--questions", type=int, default=32)
    options.add_argument("--at-once", type=int, default=16)
    options.add_argument("--per-picture", type=int, default=6, help="questions about a picture")
    options.add_argument("--tokens", type=int, default=64, help="of the longer answers")
    options.add_argument("--repeats", type=int, default=5)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as name:
        _answering(Path(name), chosen)
        _afterwards(Path(name), chosen.repeats)


def _answering(home: Path, chosen: argparse.Namespace) -> None:
    make_finesearch(
        home / "finesearch",
        split="val",
        size="small",
        n=chosen.questions,
        seed=0,
        kinds=LEARNT_KINDS,
    )
    processor = Processor.load(small_base())
    model = Watched(load_model(small_base(), device=torch.device("cpu")), processor)
    questions = benchmark("finesearch").load(home / "finesearch").questions
    prompts = [processor.encode(each.picture.decode(), each.prompt) for each in questions]
    print(f"{chosen.questions} FineSearch questions, the shipped small model, one thread")
    print(f"{'':<34}{f'{chosen.at_once} at once':>12}{'one by one':>12}{'times as fast':>15}")
    _compare(model, prompts, chosen, limit=24)
    _share(model, questions, chosen)
    # Without its end tokens, every answer runs to the limit.
    endless = (*processor.suppressed_ids, *processor.eos_ids)
    model.processor = replace(processor, suppressed_ids=endless)
    _compare(model, prompts, chosen, limit=chosen.tokens)


def _share(model: Watched, questions: Sequence[Question], chosen: argparse.Namespace) -> None:
    """Ask several questions about each picture, which is shared or not, and print the medians."""
    every = chosen.per_picture
    about = [
        replace(each, picture=questions[n // every].picture) for n, each in enumerate(questions)
    ]
    # A key of its own makes a picture another one.
    apart = [
        replace(
            each, picture=Picture(lambda n=n, each=each: each.picture.read() + bytes(n), name="")
        )
        for n, each in enumerate(about)
    ]
    seconds: tuple[list[float], list[float]] = ([], [])
    for repeat in range(chosen.repeats + 1):
        for side, asked in zip(seconds, (about, apart), strict=True):
            started = perf_counter()
            answers = ModelAnswers(
                model=model, max_response_tokens=24, prompts_per_batch=chosen.at_once
            ).answers(asked)
            for _ in answers:
                pass
            if repeat:
                side.append(perf_counter() - started)
    ours, theirs = map(statistics.median, seconds)
    print(f"{every} questions about each picture{'shared':>19}{'not shared':>12}")
    ratio = theirs / ours
    print(f"  {'reading pictures and answering':<32}{ours:>10.2f} s{theirs:>10.2f} s{ratio:>15.1f}")


def _compare(
    model: Watched, prompts: Sequence[Prompt], chosen: argparse.Namespace, *, limit: int
) -> None:
    """Let both sides answer in turn, and print the medians."""
    sides: tuple[list[Spent], list[Spent]] = ([], [])
    tokens = 0
    for repeat in range(chosen.repeats + 1):
        for side, at_once in zip(sides, (chosen.at_once, 1), strict=True):
            model.reading, started = 0.0, perf_counter()
            answers = Greedy(model, max_response_tokens=limit, prompts_per_batch=at_once)(prompts)
            tokens = sum(len(answer) for _, answer in answers)
            whole = perf_counter() - started
            if repeat:  # The first one warms up.
                side.append(Spent(reading=model.reading, decoding=whole - model.reading))
    print(f"answers of {tokens / len(prompts):.1f} tokens")
    parts: dict[str, Callable[[Spent], float]] = {
        "reading pictures and prompts": lambda spent: spent.reading,
        "decoding": lambda spent: spent.decoding,
        "both": lambda spent: spent.reading + spent.decoding,
    }
    for name, of in parts.items():
        ours, theirs = (statistics.median(map(of, side)) for side in sides)
        ratio = theirs / ours
        verdict = _verdict(ratio >= REQUIRED_RATIO, f"at least {REQUIRED_RATIO:g}")
        told = verdict if name == "decoding" else ""
        print(f"  {name:<32}{ours:>10.2f} s{theirs:>10.2f} s{ratio:>15.1f}{told}")


def _afterwards(home: Path, repeats: int) -> None:
    """Score answers to a set of POPE's layout and size, and resume the finished evaluation."""
    pope, out = benchmark("pope"), home / "out"
    loaded: LoadedSet = pope.load(_pope(home / "pope"))
    checkpoint = Checkpoint(folder=small_base())
    identity = hash_of(LocalAnswerer(checkpoint=checkpoint).settings)
    evaluation = Evaluation(benchmark=pope, loaded=loaded, model=identity, folder=out / "pope")
    evaluation.generate(Scripted(), Quiet())

    def score() -> None:
        # Earlier scores would be reused.
        (evaluation.folder / SCORES).unlink(missing_ok=True)
        evaluation.score(None, Quiet(), poll=lambda: None)

    scoring = _median(repeats, score)
    verdict = _verdict(scoring <= SCORING_SECONDS, f"at most {SCORING_SECONDS:g} s")
    print(f"{f'scoring {len(loaded):,} answers by rule':<34}{scoring:>12.2f} s{verdict}")

    command = [str(Path(sys.executable).with_name("bas-opd")), "eval", str(small_base())]
    command += ["--bench", "pope", "--data", str(home), "--out", str(out)]
    again = _median(repeats, lambda: subprocess.run(command, check=True, capture_output=True))
    verdict = _verdict(again <= RESUMING_SECONDS, f"at most {RESUMING_SECONDS:g} s")
    print(f"{'resuming that evaluation, finished':<34}{again:>12.2f} s{verdict}")


def _pope(folder: Path) -> Path:
    """Write questions as POPE is published, all about one small picture."""
    picture = io.BytesIO()
    Image.new("RGB", (8, 8)).save(picture, "PNG")
    rows = [
        {
            "question_id": str(number),
            "question": f"Is there a {THINGS[number % len(THINGS)]} in the image?",
            "answer": "yes" if number % 2 else "no",
            "category": split,
            "image": {"bytes": picture.getvalue(), "path": f"{number}.png"},
        }
        for split in SPLITS
        for number in range(PER_SPLIT)
    ]
    (folder / "data").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "data/test.parquet")
    return folder


def _median(repeats: int, run: Callable[[], object]) -> float:
    seconds = []
    for _ in range(repeats + 1):
        started = perf_counter()
        run()
        seconds.append(perf_counter() - started)
    return statistics.median(seconds[1:])  # The first one warms up.


def _verdict(is_met: bool, required: str) -> str:
    return f"   {required} required: {'met' if is_met else 'NOT MET'}"


if __name__ == "__main__":
    main()
