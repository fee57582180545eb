from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bas_opd.data.finesearch import VERSIONS, Sample, Split, render, sample
from bas_opd.data.finesearch.assets import SIDE
from bas_opd.model.base import small_base
from bas_opd.model.processing import Processor
from recipes.small_base import probe
from recipes.small_base.network import FULL, PATCH
from recipes.small_base.probe import JUDGED, MARGIN, READ_FOR, READINGS, WINDOW

DOCS = Path(__file__).parents[3] / "docs"


def questions(split: Split, many: int) -> list[Sample]:
    return probe.drawn("finesearch2", split, many, seed=3)


def test_every_kind_is_judged() -> None:
    assert set(JUDGED) == set(READ_FOR) == set(VERSIONS["finesearch2"].kinds)


def test_whoever_reads_everything_right_answers_everything_right() -> None:
    for one in questions("val", 20):
        read = [probe.truth(READ_FOR[one.kind], each) for each in probe.asked_about(one)]
        assert probe.answer(one, read) == one.question.answer


def test_whoever_misreads_what_is_asked_for_answers_wrong() -> None:
    for one in questions("val", 5):
        reading = READINGS[READ_FOR[one.kind]]
        read = [
            [(part + 1) % reading.classes for part in probe.truth(READ_FOR[one.kind], each)]
            for each in probe.asked_about(one)
        ]
        if (one.kind, one.question.answer) != ("existence", "no"):
            assert probe.answer(one, read) != one.question.answer


def test_the_shrunk_picture_is_the_one_that_the_processor_makes() -> None:
    picture = render(questions("val", 1)[0].scene)
    half, patch = FULL // PATCH // 2, PATCH
    patches = Processor.load(small_base("finesearch2")).encode(picture, "?").pixel_values
    patches = patches.view(half, half, 2, 2, 3, 2, patch, patch)[:, :, :, :, :, 0]
    seen = patches.permute(0, 2, 5, 1, 3, 6, 4).reshape(FULL, FULL, 3)
    shrunk = torch.from_numpy(np.array(probe.shrunk(picture, FULL)))
    torch.testing.assert_close((seen + 1) * 127.5, shrunk.float(), atol=0.01, rtol=0)


def test_a_window_lies_around_its_thing_and_inside_the_picture() -> None:
    asked = questions("val", 10)
    for one in asked:
        for each in one.scene.placed:
            x0, y0, x1, y1 = each.box
            assert min(x0, y0) >= MARGIN
            assert max(x1, y1) <= SIDE - MARGIN
    view = probe.shrunk(render(asked[0].scene), FULL)
    assert probe.window(view, asked[0].scene.placed[0]).size == (WINDOW, WINDOW)


def test_windows_are_labelled_by_their_own_things() -> None:
    windows = probe.Windows(FULL)
    one = sample("train", "small", 0, 0, "number", version="finesearch2")[0]
    windows.add(one, one.scene.placed)
    pictures, labels = windows.of("number")
    signs = [each.thing for each in one.scene.placed if each.thing.shape == "sign"]
    assert [f"{tens}{ones}" for tens, ones in labels.tolist()] == [sign.name for sign in signs]
    assert pictures.shape == (len(signs), 3, WINDOW, WINDOW)
    assert 0 <= float(pictures.min()) < float(pictures.max()) <= 1


def test_what_is_written_is_never_mirrored_or_recoloured() -> None:
    for name in ("number", "digit"):
        reading = replace(READINGS[name], turn=0.0)
        ramp = torch.linspace(0, 1, WINDOW).expand(64, 3, WINDOW, WINDOW)
        changed = probe.changed(ramp, reading)
        assert (changed[..., -1] > changed[..., 0]).all()
        torch.testing.assert_close(changed[:, 0], changed[:, 2])
    assert not (probe.changed(ramp, READINGS["category"])[..., -1] > 0.5).all()


@pytest.mark.parametrize("name", READINGS)
def test_a_reader_learns_a_few_windows(name: str) -> None:
    torch.manual_seed(0)
    windows = probe.Windows(FULL)
    for index in range(12):
        kind = "number" if name == "number" else "digit"
        one = sample("train", "small", 0, index, kind, version="finesearch2")[0]
        windows.add(one, one.scene.placed)
    pictures, labels = windows.of(name)
    reader = probe.learn(pictures[:12], labels[:12], replace(READINGS[name], epochs=80), batch=12)
    with torch.no_grad():
        read = reader(pictures[:12]).argmax(-1)
    assert (read == labels[:12]).float().mean() > 0.9


def test_a_tiny_probe_gives_a_share_for_each_reading_and_kind() -> None:
    readers = probe.train("finesearch2", 6)
    found = probe.judge(readers, questions("val", 1), FULL)
    assert set(found["single things"]) == set(READINGS)
    assert set(found["kinds"]) == set(JUDGED)
    assert all(0 <= share <= 1 for shares in found.values() for share in shares.values())


def test_the_published_table_is_that_of_its_records() -> None:
    records = (DOCS / "results/base2/probe.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in records.splitlines()]
    kinds = {line["split"]: line for line in lines if line["of"] == "kinds"}
    page = (DOCS / "data.md").read_text(encoding="utf-8")
    section = page[page.index("### Is the answer in the student's view?") :]
    for kind in JUDGED:
        shares = [kinds[split][kind] for split in ("train", "val", "test")]
        assert min(shares) >= 0.85
        assert f"| {kind} | {' | '.join(f'{100 * share:.1f}' for share in shares)} |" in section
    missed = {line["split"]: len(line) - 4 for line in lines if "missed" in line["of"]}
    assert missed == {"train": 0, "val": 3, "test": 1}
