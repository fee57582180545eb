"""What the stored answers of a served teacher take, compared with the files of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from run_fixtures import Silent, events_of, small_config
from safetensors.torch import load_file
from teacher_server import TeacherServer

from bas_opd.cli.plan import lines
from bas_opd.commands import doctor
from bas_opd.commands.plan import plan
from bas_opd.config import Config
from bas_opd.data.records import PreparedSet
from bas_opd.errors import BasOpdError
from bas_opd.run import loop
from bas_opd.run.stored_answers import answers_bytes, answers_until_checkpoint, file_bytes

K = 20


@pytest.fixture(params=["student", "teacher"])
def served(
    request: pytest.FixtureRequest,
    small_qwen35: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[Config, TeacherServer]]:
    """A run of five steps with a served teacher; checkpoints come after two."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with TeacherServer(small_qwen35).running() as server:
        asked = (f"distill.k={K}", f"teacher.support={request.param}", "select.policy=random")
        yield small_config(tmp_path, small_qwen35, *server.settings(*asked)), server


def free(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=count))


def test_a_plan_counts_the_answers_that_a_run_stores(
    served: tuple[Config, TeacherServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, server = served
    planned = plan(config)
    checked: list[tuple[int, int]] = []
    monkeypatch.setattr(loop, "_check_disk", lambda _, *sizes: checked.append(sizes))
    run = loop.train(config, Silent()).directory
    files = list((run / "teacher" / "answers").iterdir())
    assert len(files) == len(server.requests) == planned.calls
    for file in files:
        tokens = len(load_file(file)["ids"])
        assert file.stat().st_size == file_bytes(tokens, K)

    # These responses end at their limit of five tokens, or a little before.
    written = sum(file.stat().st_size for file in files)
    assert planned.disk is not None
    assert planned.disk.answers == pytest.approx(written, rel=0.1)
    alone = (planned.disk.kept_checkpoints + 1) * planned.disk.checkpoint + planned.disk.model
    assert planned.disk.most == alone + planned.disk.answers
    text = "\n".join(lines(planned))
    assert "stored answers    about " in text
    assert "disk              about " in text

    first = sum(event["calls"] for event in events_of(run)[1:3])
    assert [answers for _, answers in checked] == [answers_bytes(config, first)]

    # Some examples have no crop, which `doctor` does not look at.
    needed = doctor._disk_needed(config, PreparedSet.load(Path(config.data.path)))
    assert needed is not None
    assert planned.disk.most <= needed <= alone + 1.5 * planned.disk.answers


def test_a_disk_without_room_for_checkpoint_and_answers_is_refused_before_a_request(
    served: tuple[Config, TeacherServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, server = served
    known = plan(config).disk
    assert known is not None
    server.requests = []
    free(monkeypatch, known.checkpoint + 1000)
    with pytest.raises(BasOpdError, match=r"the teacher's answers before it about 0\.0 GB, but"):
        loop.train(config, Silent())
    assert server.requests == []


def test_room_for_both_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 150)
    loop._check_disk(tmp_path, 100, 50)
    with pytest.raises(BasOpdError, match="answers before it"):
        loop._check_disk(tmp_path, 100, 51)
    with pytest.raises(BasOpdError, match=r"takes 0\.0 GB, but"):
        loop._check_disk(tmp_path, 151, 0)


def test_a_teacher_in_this_process_stores_nothing(small_qwen35: Path, tmp_path: Path) -> None:
    config = small_config(tmp_path, small_qwen35)
    planned = plan(config).disk
    assert planned is not None
    assert planned.answers == 0
    assert "at most" in "\n".join(lines(plan(config)))
    batches = loop.check_run(config, PreparedSet.load(Path(config.data.path)))
    assert answers_until_checkpoint(config, batches) == 0


def test_the_papers_budget_stores_about_a_gigabyte() -> None:
    assert 56 * 111 * file_bytes(87, 100) == pytest.approx(1.1e9, rel=0.03)
