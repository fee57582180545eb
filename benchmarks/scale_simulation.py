"""A step of a large model on 1 to 1,024 GPUs: bytes moved, idle GPUs, and the work of the leader.

    python benchmarks/scale_simulation.py --json docs/results/bench/scale-4b.json
    python benchmarks/scale_simulation.py --model Qwen/Qwen3.5-9B --gpus 8 --reshard

Nothing of it runs on GPUs. `make performance` renders docs/scale.md from the files.

Measured here: lengths of prompts and responses, and the exchanges of a step, in a real run of two
processes with the small model; the CPU time of packing, features, selection, records, and of
reading and joining what ranks send. Computed: bytes, by the product's own plan of the exchanges
for the shape of the model, and idle time, with its packer. Assumed: bandwidths, the speed of a GPU,
and mean lengths, by arguments; the speed is that of one H200 in docs/performance.md. No exchange
overlaps with computation.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
from transformers import AutoModelForImageTextToText

from bas_opd.bench.page import simulated
from bas_opd.budget import query_budget
from bas_opd.compute.world import World
from bas_opd.config import load_config
from bas_opd.data.records import PreparedSet
from bas_opd.model.batches import group_by_prompt, micro_batches, shares
from bas_opd.model.layerwise import Exchanges, LayerPass
from bas_opd.model.sharding import Bucket, Shards
from bas_opd.model.size import sizing_config
from bas_opd.report.charts.model import Axis, axis, line_chart, percent_tick
from bas_opd.report.charts.printed import printed
from bas_opd.rollout.decoding import groups_of_like_length
from bas_opd.rollout.sampler import Drawn, Packed
from bas_opd.run.ledger import Ledger
from bas_opd.run.record import parse_step
from bas_opd.run.record_file import RecordWriter, read_records
from bas_opd.select import LearnedSelector, rollout_features
from bas_opd.types import Crop, DistantPrompt, Example, Rollouts

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks._sides import check_output, write_numbers
from tests.synthetic_steps import synthetic_steps
from tests.worlds.ranks import in_world, train_in_world

PER_PROMPT, RATIO, LIMIT = 8, 0.25, 1024
"""Rollouts of a prompt, share of rows that are queried, longest response (the paper's)."""
STUDENT_TOKENS, TEACHER_TOKENS, PROMPTS_PER_BATCH = 9_216, 16_384, 7
"""Of a micro-batch, a teacher's batch and a sampler's, as in the preset qwen3.5-4b."""
ON_A_MACHINE = 8
"""GPUs with NVLink between them."""
SUMS = 2
"""Exchanges of objects that a further micro-batch adds."""
PARTS = {
    "computing": "ranked",
    "idle": "explored",
    "weights and gradients": "limit",
    "objects between ranks": "third",
    "leader and packing": "faint",
}
"""What a step consists of, and the style of its line."""

Pool = list[tuple[int, list[int]]]
"""Prompts: their tokens, and those of their responses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes that each GPU receives as weights, and sends as gradients."""

    phase: int
    """Weights of the whole network: to sample, and once more to score."""
    head: int
    """The teacher's head, in fp32."""
    learn: int
    """Weights that are gathered once while the student learns."""
    turn: int
    """Weights that are gathered for each of its micro-batches."""
    summed: int
    """Gradients of a micro-batch, among the GPUs that share all parameters."""
    across: int
    """And of the same rows, among groups of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A simulated step; seconds but where a name says otherwise."""

    gpus: int
    prompts: int
    replicas: int
    sample_gb: float
    score_gb: float
    learn_gb: float
    """Received by each GPU as weights, in each phase."""
    summed_gb: float
    """Sent by each GPU as gradients."""
    idle_share: float
    """Of the time in which GPUs compute, from lengths that differ."""
    idle_share_of_28: float
    """The same with the paper's 28 prompts a step."""
    computing: float
    idle: float
    moving: float
    """Weights and gradients."""
    responses_gb: float
    """Received by each process over the host's network: what all ranks sampled."""
    responses: float
    """Until each process has the responses of all: on the way, read and put in order."""
    others: float
    """Exchanges of other objects, which are small."""
    select: float
    records: float
    packing: float
    record_mb: float

    @property
    def leader(self) -> float:
        return self.select + self.records + self.packing

    @property
    def total(self) -> float:
        return self.computing + self.idle + self.moving + self.responses + self.others + self.leader

    def content(self) -> dict[str, float]:
        """Return the numbers for a file."""
        shares = {"total": self.total, "computing_share": self.computing / self.total}
        return {name: round(each, 6) for name, each in (asdict(self) | shares).items()}


def main() -> None:
    """Measure, simulate, print a table, and draw a figure where one is asked for."""
    chosen = options().parse_args()
    check_output(chosen)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        exchanges = real_run(home)
        pool = pool_of(home / "run", chosen.prompt_tokens, chosen.response_tokens)
        hop = seconds_of_exchange()
        steps = [simulate(chosen, gpus, pool, exchanges, hop, home) for gpus in chosen.gpus]
    found = {
        "prompts": len(pool),
        "responses": sum(len(responses) for _, responses in pool),
        "exchanges": exchanges,
        "exchange_ms": round(1e3 * hop, 3),
        "steps": [step.content() for step in steps],
    }
    print("\n".join(simulated(found)))
    if chosen.figure:
        Path(chosen.figure).write_text(figure(steps, chosen), encoding="utf-8")
    write_numbers(chosen, {"simulation": found})


def options() -> argparse.ArgumentParser:
    """Return what is assumed, as options."""
    found = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    many = [2**power for power in range(11)]
    found.add_argument("--model", default="Qwen/Qwen3.5-4B", help="a folder, hub id or known shape")
    found.add_argument("--gpus", type=int, nargs="+", default=many)
    found.add_argument("--reshard", action="store_true", help="as with shard.reshard=true")
    found.add_argument(
        "--group", type=int, help="GPUs that share all parameters: shard.replicas = GPUs / group"
    )
    found.add_argument("--prompts-per-gpu", type=int, default=7, help="prompts of a step: 28 on 4")
    found.add_argument("--prompt-tokens", type=float, default=1500, help="mean of a prompt")
    found.add_argument("--response-tokens", type=float, default=87, help="mean of a response")
    found.add_argument("--crop-share", type=float, default=0.25, help="teacher's prompt / prompt")
    found.add_argument("--nvlink", type=float, default=450, help="GB/s of a GPU in a machine")
    found.add_argument("--infiniband", type=float, default=50, help="GB/s of a GPU beyond it")
    found.add_argument("--ethernet", type=float, default=12.5, help="GB/s of a machine, for gloo")
    found.add_argument("--latency", type=float, default=0.05, help="ms of a hop of gloo")
    # Of one H200 with the 4B shape and 28 prompts, 2026-11-19, see docs/performance.md.
    found.add_argument("--decode", type=float, default=16, help="ms of a token of one batch")
    found.add_argument(
        "--prefill", type=float, default=32_000, help="tokens/s of sampler and teacher"
    )
    found.add_argument("--learn", type=float, default=6500, help="tokens/s of the student")
    found.add_argument("--json", type=Path, help="write the numbers there")
    found.add_argument("--figure", help="write an SVG there")
    return found


def real_run(home: Path) -> float:
    """Train the small model in two processes; return the exchanges of objects in a step."""
    counts = home / "counts.json"
    words = [
        *("train", "tiny", "model.path=small", "run.output=run", "rollout.max_response_tokens=128"),
        *("rollout.prompts_per_step=16", "rollout.per_prompt=8", "run.steps=6"),
        *("select.replay_start=8", "select.query_ratio=0.25", "run.checkpoint_every=100"),
    ]

    def count(rank: int) -> None:
        from bas_opd.run.steps import RunSteps

        os.chdir(home)  # Its pictures are drawn there.
        gather, record = World.gather, RunSteps._record
        seen = [0]

        def counted(world: World, value: Any, **options: Any) -> Any:
            seen[-1] += 1
            return gather(world, value, **options)

        def recorded(run: Any, report: Any) -> None:
            record(run, report)
            seen.append(0)
            if rank == 0:
                counts.write_text(json.dumps(seen))

        World.gather, RunSteps._record = counted, recorded  # type: ignore[method-assign]

    ended = train_in_world(2, words, count).wait(600)
    assert all(each.code == 0 for each in ended), ended
    _, *steps = json.loads(counts.read_text())[:-1]  # The first has what precedes it.
    return statistics.median(steps)


def pool_of(run: Path, prompt_tokens: float, response_tokens: float) -> Pool:
    """Return the lengths of a run, scaled to given means: their spread is that of the run."""
    found: Pool = []
    for event in read_records(run / "records.jsonl"):
        if event["event"] == "step":
            lengths = event["response_tokens"]
            found += [
                (prompt, lengths[PER_PROMPT * i : PER_PROMPT * (i + 1)])
                for i, prompt in enumerate(event["prompt_tokens"])
            ]
    wide = prompt_tokens / statistics.fmean(prompt for prompt, _ in found)
    long = response_tokens / statistics.fmean(n for _, responses in found for n in responses)
    return [
        (round(wide * prompt), [min(LIMIT, max(1, round(long * n))) for n in responses])
        for prompt, responses in found
    ]


def seconds_of_exchange() -> float:
    """Return the time in which two processes of this machine exchange a small object."""

    def work(world: World) -> float:
        times = []
        for _ in range(300):
            started = perf_counter()
            world.gather(0)
            times.append(perf_counter() - started)
        return min(times)  # The others waited for a core.

    return max(in_world(2, work))


def simulate(
    chosen: argparse.Namespace, gpus: int, pool: Pool, exchanges: float, hop: float, home: Path
) -> Step:
    """Return a step on so many GPUs, with as many prompts a GPU as asked for."""
    prompts = chosen.prompts_per_gpu * gpus
    rollouts = batch_of(prompts, pool)
    replicas = max(1, gpus // (chosen.group or gpus))
    moved = traffic(chosen.model, gpus, replicas=replicas, reshard=chosen.reshard)
    busy, whole, turns, packing = passes(chosen, rollouts, gpus)
    few_busy, few_whole, _, _ = passes(chosen, batch_of(28, pool), gpus)

    within, across = (
        1e9 * (chosen.nvlink if size <= ON_A_MACHINE else chosen.infiniband)
        for size in (gpus // replicas, gpus)
    )
    score, learn = moved.phase + moved.head, moved.learn + turns * moved.turn
    gathered = moved.phase + score + learn
    seconds = (gathered + turns * moved.summed) / within + turns * moved.across / across

    select, records, record_bytes = leader(rollouts, home)
    sent = [pickle.dumps(drawn(rollouts, rank, gpus)) for rank in range(gpus)]
    received = (gpus - 1) * max(map(len, sent))  # gloo pads them
    reading = timed(
        lambda: Drawn.joined([pickle.loads(part) for part in sent], prompts, PER_PROMPT, 0)
    )
    on_machine = min(gpus, ON_A_MACHINE)
    # gloo hands values round in a ring: first their sizes, then themselves.
    rounds = hop + 2 * max(0, gpus - 2) * 1e-3 * chosen.latency
    calls = (exchanges + SUMS * (turns - 1)) * rounds if gpus > 1 else 0.0
    return Step(
        gpus=gpus,
        prompts=prompts,
        replicas=replicas,
        sample_gb=moved.phase / 1e9,
        score_gb=score / 1e9,
        learn_gb=learn / 1e9,
        summed_gb=turns * (moved.summed + moved.across) / 1e9,
        idle_share=1 - busy / whole,
        idle_share_of_28=1 - few_busy / few_whole,
        computing=busy,
        idle=whole - busy,
        moving=seconds,
        responses_gb=received / 1e9,
        responses=on_machine * received / (1e9 * chosen.ethernet) + reading,
        others=calls,
        select=select,
        records=records,
        packing=packing,
        record_mb=record_bytes / 1e6,
    )


def traffic(model: str, gpus: int, *, replicas: int = 1, reshard: bool = False) -> Traffic:
    """Return the bytes of the exchanges that the product would make; they have no values here."""
    with torch.device("meta"):
        network: Any = AutoModelForImageTextToText.from_config(
            sizing_config(model), dtype=torch.float32
        )
    world = World(size=gpus, replicas=replicas)
    shards = Shards(network, network.lm_head, torch.bfloat16, world, by_layer=reshard)
    others, own_head = world.parts - 1, network.lm_head.weight
    head_rows = others * world.most_rows(len(own_head)) * own_head.shape[1]
    counts: Counter[str] = Counter()

    def sent(bucket: Bucket) -> int:
        return others * sum(bucket.sizes) * shards._whole[bucket.names[0]].element_size()

    def gather(bucket: Bucket) -> Callable[[], None]:
        counts["turn"] += sent(bucket)
        return nothing

    def add(bucket: Bucket) -> Callable[[], None]:
        part = torch.float32.itemsize * sum(bucket.sizes)
        counts["summed"] += others * part
        counts["across"] += round(2 * part * (replicas - 1) / replicas)
        return nothing

    if reshard:
        exchanges = {
            layer: Exchanges(
                gather=[partial(gather, bucket) for bucket in part.gathered],
                sum=[partial(add, bucket) for bucket in part.summed],
                free=nothing,
            )
            for layer, part in shards._layers.items()
        }
        turning, ending = (
            [partial(add, bucket) for bucket in part.summed]
            for part in (shards._head, shards._rest)
        )
        LayerPass(shards._towers, exchanges, turning, ending, reads=2).finish()
    else:
        for bucket in shards._all.summed:
            add(bucket)
    kept = shards._kept if reshard else shards._all
    return Traffic(
        phase=sum(map(sent, shards._all.gathered)),
        head=torch.float32.itemsize * head_rows,
        learn=sum(map(sent, kept.gathered)),
        turn=counts["turn"],
        summed=counts["summed"],
        across=counts["across"],
    )


def nothing() -> None:
    """End an exchange that did not take place."""


def batch_of(prompts: int, pool: Pool) -> Rollouts:
    """Draw prompts with their responses from a run, each as often as chance has it."""
    draw = random.Random(prompts)
    taken = [pool[draw.randrange(len(pool))] for _ in range(prompts)]
    lengths = torch.tensor([n for _, responses in taken for n in responses])
    shape = (len(lengths), int(lengths.max()))
    generator = torch.Generator().manual_seed(prompts)
    crop = Crop(area=0.1, box=(0.0, 0.0, 1.0, 1.0))

    def encode() -> Any:
        raise AssertionError("Nothing is computed here.")

    return Rollouts(
        step=0,
        examples=tuple(
            Example(id=str(i), image=Path("none.png"), question="?", crop=crop)
            for i in range(prompts)
        ),
        prompts=tuple(DistantPrompt(length, encode) for length, _ in taken),
        per_prompt=PER_PROMPT,
        tokens=torch.randint(0, 248_320, shape, generator=generator),
        lengths=lengths,
        logprobs=-torch.rand(shape, generator=generator),
        entropies=torch.rand(shape, generator=generator),
    )


def passes(
    chosen: argparse.Namespace, rollouts: Rollouts, gpus: int
) -> tuple[float, float, int, float]:
    """Return seconds that a mean GPU computes, that all take, turns, and seconds of packing."""
    forward, token = 1 / chosen.prefill, 1e-3 * chosen.decode
    lengths = rollouts.lengths.tolist()

    def sampling(rank: int) -> float:
        own = range(rank, len(rollouts.prompts), gpus)
        prompts: Any = [rollouts.prompts[i] for i in own]
        seconds = forward * sum(prompt.length for prompt in prompts)
        for group in groups_of_like_length(prompts, PROMPTS_PER_BATCH) if prompts else ():
            rows = [row for i in group for row in rows_of(own[i])]
            seconds += token * max(lengths[row] for row in rows)
        return seconds

    sampled = [sampling(rank) for rank in range(gpus)]
    selected = sorted(
        random.Random(0).sample(range(len(lengths)), query_budget(RATIO, len(lengths)))
    )
    dealt = shares(group_by_prompt(selected, rollouts), gpus)

    def pack() -> list[list[Any]]:
        again = shares(group_by_prompt(selected, rollouts), gpus)
        return [list(micro_batches(groups, STUDENT_TOKENS)) for groups in again]

    student = pack()
    packing = 2 * timed(pack, repeats=3)  # for the teacher, and for the student

    def crop_tokens(batch: Any) -> float:
        prompts = sum(group.prompt.length for group in batch.groups)
        return batch.shared_tokens(rollouts) - (1 - chosen.crop_share) * prompts

    scored = [
        forward * sum(map(crop_tokens, micro_batches(groups, TEACHER_TOKENS))) for groups in dealt
    ]
    turns = max(map(len, student))
    learned = [
        [
            b.shared_tokens(rollouts) / chosen.learn
            for batches in student
            for b in batches[t : t + 1]
        ]
        for t in range(turns)
    ]
    whole = max(sampled) + max(scored) + sum(map(max, learned))
    busy = (sum(sampled) + sum(scored) + sum(map(sum, learned))) / gpus
    return busy, whole, turns, packing


def rows_of(prompt: int) -> range:
    return range(PER_PROMPT * prompt, PER_PROMPT * (prompt + 1))


def leader(rollouts: Rollouts, home: Path) -> tuple[float, float, int]:
    """Return seconds of features and selection, of a record, and the bytes of a record."""
    rows = range(len(rollouts))
    selector = LearnedSelector()
    times = []
    for step in range(4):
        started = process_time()
        candidates = rollout_features(rollouts, rows)
        selection = selector.select(candidates, query_budget(RATIO, len(rows)), step=step)
        utility = {row: float(candidates.values[row, 0]) for row in selection.rows}
        selector.learn(candidates, utility, step=step)
        times.append(process_time() - started)
    settings = load_config(
        Path("tiny"),
        [
            *("model.path=small", "select.query_ratio=0.25"),
            *(f"rollout.prompts_per_step={len(rollouts.prompts)}", "rollout.per_prompt=8"),
        ],
    )
    known: Any = _Examples(rollouts.examples)
    (event,) = synthetic_steps(settings, known, 1, random.Random(0), {}, 2)
    event["student_tokens_of_ranks"] = [1] * len(rollouts.prompts)
    path = home / "records.jsonl"
    path.unlink(missing_ok=True)
    ledger = Ledger()

    def write() -> None:
        ledger.charge(parse_step(event))
        records.write(event)

    with RecordWriter(path) as records:
        written = timed(write)
    lines = path.read_bytes().count(b"\n")
    return statistics.median(times), written, path.stat().st_size // lines


class _Examples(PreparedSet):
    """A set that was never written."""

    def __init__(self, examples: Sequence[Example]) -> None:
        object.__setattr__(self, "examples", tuple(examples))

    def __len__(self) -> int:
        return len(self.examples)


def drawn(rollouts: Rollouts, rank: int, ranks: int) -> Packed:
    """Return what a rank sends to all others after it has sampled."""
    assert rollouts.entropies is not None
    rows = [row for i in range(rank, len(rollouts.prompts), ranks) for row in rows_of(i)]
    return Drawn(
        tokens=rollouts.tokens[rows],
        lengths=rollouts.lengths[rows],
        logprobs=rollouts.logprobs[rows],
        entropies=rollouts.entropies[rows],
    ).packed()


def timed(work: Callable[[], object], repeats: int = 5) -> float:
    """Return the median CPU seconds of some calls, which other processes do not change."""
    times = []
    for _ in range(repeats):
        started = process_time()
        work()
        times.append(process_time() - started)
    return statistics.median(times)


def figure(steps: Sequence[Step], chosen: argparse.Namespace) -> str:
    """Return the shares of a step as a drawing."""
    of: dict[str, Callable[[Step], float]] = {
        "computing": lambda s: s.computing,
        "idle": lambda s: s.idle,
        "weights and gradients": lambda s: s.moving,
        "objects between ranks": lambda s: s.responses + s.others,
        "leader and packing": lambda s: s.leader,
    }
    lines = {
        (part, style): [(float(x), of[part](s) / s.total) for x, s in enumerate(steps)]
        for part, style in PARTS.items()
    }
    ticks = tuple((float(x), f"{step.gpus:,}") for x, step in enumerate(steps))
    chart = line_chart(
        lines,
        title="Parts of a step",
        label="Share of a simulated step that each part takes, by the number of GPUs",
        x=Axis(name="GPUs", low=0.0, high=len(steps) - 1.0, ticks=ticks),
        y=axis("share of the step", (0.0, 1.0), tick=percent_tick, grid=True),
    )
    note = (
        f"Simulated, not run: {chosen.model}{', resharded' if chosen.reshard else ''}, "
        f"{chosen.prompts_per_gpu} prompts a GPU, NVLink "
        f"{chosen.nvlink:g} and InfiniBand {chosen.infiniband:g} GB/s a GPU, Ethernet "
        f"{chosen.ethernet:g} GB/s a machine, {datetime.now(UTC):%B %Y}."
    )
    return printed([chart], note=note)


if __name__ == "__main__":
    sys.exit(main())
