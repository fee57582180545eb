"""Runs that never were, with records that check out: for tests of what reads runs."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from audit_fixtures import PROVENANCE
from synthetic_rewards import reward_steps
from synthetic_steps import synthetic_steps

from bas_opd.audit.records import (
    Candidate,
    CheckpointGeometry,
    GeometryAudit,
    Pair,
    Source,
    Teacher,
    UtilityAudit,
    geometry_file,
    utility_file,
    write_audit,
)
from bas_opd.config.loading import config_hash, dump
from bas_opd.config.schema import Config
from bas_opd.data.records import PreparedSet
from bas_opd.evaluate.benchmarks import Scored, benchmark
from bas_opd.evaluate.results import REPORT
from bas_opd.evaluate.samples import SCORES
from bas_opd.files import sha256
from bas_opd.run.ledger import Ledger
from bas_opd.run.record import parse_step
from bas_opd.run.record_file import RecordWriter

REPLAY_START = 8
MODEL = ("config.json", "model.safetensors")


def synthetic_run(
    path: Path,
    data: PreparedSet,
    *,
    policy: str = "learned",
    steps: int = 6,
    planned: int | None = None,
    prompts: int = 6,
    per_prompt: int = 4,
    seed: int = 0,
    texts: Mapping[str, str] | None = None,
    shown: int = 2,
    ratio: str = "0.25",
    method: str = "bas-opd",
    settings: Mapping[str, Any] | None = None,
) -> Path:
    """Write the directory of a run; it has not finished where more steps were planned.

    `settings` are further sections.
    """
    ratio = "1" if policy == "full" else ratio
    planned = planned or steps
    own = {"select": {"policy": policy, "query_ratio": ratio, "replay_start": REPLAY_START}}
    config = Config.model_validate(
        {
            "model": {"path": "somewhere/base"},
            "data": {"path": str(data.folder)},
            "rollout": {"prompts_per_step": prompts, "per_prompt": per_prompt},
            "run": {"steps": planned, "seed": seed, "output": str(path)},
            "method": {"name": method},
            **(own if method == "bas-opd" else {}),
            **(settings or {}),
        }
    )
    identity = {
        "schema_version": 1,
        "config": dump(config),
        "config_hash": config_hash(config),
        "dataset": {"fingerprint": data.fingerprint, "examples": len(data)},
        "environment": {"python": "3.11", "platform": "a machine", "packages": {"bas-opd": "0"}},
        "steps": planned,
        "device": "cpu",
        "precision": "float32",
        "base": "b" * 64,
    }
    path.mkdir(parents=True)
    (path / "run.json").write_text(json.dumps(identity))
    draw, written = random.Random(seed), dict(texts or {})
    if config.queries is None:
        events = list(reward_steps(config, data, steps, draw, shown))
    else:
        events = list(synthetic_steps(config, data, steps, draw, written, shown))
    with RecordWriter(path / "records.jsonl") as writer:
        folder = {"folder": str(data.folder), **identity["dataset"]}
        writer.write({"event": "started", **identity, "data": folder})
        for event in events:
            writer.write(event)
        if steps == planned:
            (path / "model").mkdir()
            for name in MODEL:
                (path / "model" / name).write_text("{}")
            hashes = {name: sha256(path / "model" / name) for name in MODEL}
            sums = Ledger.of(map(parse_step, events)).totals()
            writer.write({"event": "finished", "steps": steps, "totals": sums, "model": hashes})
    return path


def evaluate(
    run: Path,
    right: Sequence[bool],
    *,
    kinds: Sequence[str] = ("count", "colour"),
    out: str = "eval",
    questions: str = "q",
    judged: int = 0,
    judge: str | None = None,
    weights: Mapping[str, str] | None = None,
) -> None:
    """Leave an evaluation in a run's folder; the last `judged` answers had no rule to read them."""
    rule = len(right) - judged
    scored = [
        Scored(
            id=f"question-{number}",
            outcome="unscored" if number >= rule else "correct" if is_right else "wrong",
            source="rule" if number < rule else "judge",
            groups={"kind": kinds[number % len(kinds)]},
        )
        for number, is_right in enumerate(right)
    ]
    summary = benchmark("finesearch").summarise(scored)
    report = {
        "model": "run",
        "identity": "i",
        "judge": judge,
        "weights": weights,
        "benchmarks": [
            {
                "fingerprint": questions,
                "judge": {"model": judge, "url": "u", "fallbacks": []} if judge else None,
                **asdict(summary),
            }
        ],
    }
    folder = run / out / "finesearch"
    folder.mkdir(parents=True, exist_ok=True)
    (run / out / REPORT).write_text(json.dumps(report))
    lines = [json.dumps({"key": each.id, **asdict(each)}) for each in scored]
    (folder / SCORES).write_text("".join(f"{line}\n" for line in lines))


def audit(
    run: Path,
    *,
    source: Source = "training",
    teacher: Teacher = "own",
    batches: int = 6,
    ratio: str = "0.25",
    worth: float = 0.01,
) -> None:
    """Leave a utility audit in a run's folder; its utilities are at most `worth`."""
    draw = random.Random(1)
    candidates = []
    for batch in range(batches):
        for row in range(16):
            utility = worth * draw.random() ** 2
            candidates.append(
                Candidate(
                    batch=batch,
                    row=row,
                    example=f"e{row}",
                    kind=("count", "relative position")[row % 2],
                    tokens=5,
                    predicted=utility + draw.gauss(0, 0.003),
                    entropy=draw.random(),
                    utility=utility,
                )
            )
    provenance = {**_provenance(source, teacher), "query_ratio": ratio}
    record = UtilityAudit(**provenance, step=6, dropped=0, candidates=candidates)
    write_audit(utility_file(run, source, teacher), record)


def audit_gradients(run: Path, *, teacher: Teacher = "own", batches: int = 5) -> None:
    """Leave an audit of gradients in a run's folder."""
    draw = random.Random(2)

    def pair() -> Pair:
        return Pair(
            selected_norm=draw.uniform(1.5, 2.5),
            unselected_norm=draw.uniform(0.8, 1.2),
            cosine=draw.uniform(0.3, 0.5),
            selected=5,
            unselected=15,
        )

    checkpoints = [
        CheckpointGeometry(step=step, pairs=[pair() for _ in range(batches)], mean=pair())
        for step in range(1, 7)
    ]
    record = GeometryAudit(**_provenance("training", teacher), checkpoints=checkpoints)
    write_audit(geometry_file(run, teacher), record)


def _provenance(source: Source, teacher: Teacher) -> dict[str, Any]:
    return {**PROVENANCE, "teacher": teacher, "source": source}
