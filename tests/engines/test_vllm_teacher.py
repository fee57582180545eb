"""A real vLLM server as the teacher, against the same model in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from run_fixtures import Silent, small_config
from run_states import step_records
from small_models import build_small_model
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM
from vllm_server import MOST, TWO, serving

from bas_opd.config import Config
from bas_opd.data.records import PreparedSet
from bas_opd.data.views import crop_view, full_view
from bas_opd.distill.loss import DistillSettings
from bas_opd.errors import ConfigError, ModelError
from bas_opd.learn import Distillation, Learner, OptimizerSettings
from bas_opd.model.loading import open_model
from bas_opd.model.processing import Processor
from bas_opd.rollout import Sampler, SamplingSettings
from bas_opd.run import loop
from bas_opd.run.verify import verify
from bas_opd.serving.client import AccessError, RefusedError
from bas_opd.serving.endpoint import Endpoint
from bas_opd.serving.scoring import ScoringClient
from bas_opd.teacher import FrozenTeacher
from bas_opd.teacher.server_teacher import Limits, ServedTeacher, sample_request
from bas_opd.teacher.student_pass import StudentPass
from bas_opd.types import PromptBatch

K = MOST


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_small_model(tmp_path_factory.mktemp("teacher"), family="qwen3_vl", seed=5)


@pytest.fixture(scope="module")
def url(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(teacher, log, "--enable-scale-out") as address:
        yield address


@pytest.fixture(scope="module")
def choosing(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that scores chosen ids."""
    log = tmp_path_factory.mktemp("choosing") / "log"
    with serving(teacher, log, "--enable-scale-out", program=TWO) as address:
        yield address


def config(home: Path, student: Path, url: str, *overrides: str) -> Config:
    served = (f"teacher.server={url}", "teacher.model=a-teacher")
    return small_config(home, student, *served, *overrides)


def test_its_log_probs_are_those_of_the_same_model_here(
    url: str, teacher: Path, small_qwen3vl: Path, tmp_path: Path
) -> None:
    """Crops have sizes that must be changed for the model, which each library does otherwise."""
    small_config(tmp_path, small_qwen3vl)  # Draws the pictures.
    data = PreparedSet.load(tmp_path / "data")
    examples = tuple(example for example in data.examples if example.has_crop)[:6]
    student, local = (open_model(path, device="cpu") for path in (small_qwen3vl, teacher))
    sampling = SamplingSettings(per_prompt=2, max_response_tokens=12)
    rollouts = Sampler(student, full_view, sampling).generate(
        PromptBatch(step=0, examples=examples)
    )
    rows = range(len(rollouts))
    here = FrozenTeacher(local, crop_view, tokens_per_batch=4096).score(rollouts, rows)
    client = ScoringClient(
        Endpoint(url=url, model="a-teacher"),
        vocabulary=len(local.head.weight),  # type: ignore[arg-type]
    )
    there = ServedTeacher(
        client, student.processor, crop_view, tmp_path / "requests", k=K, limits=Limits()
    ).score(rollouts, rows)
    assert there.scored_tokens == here.scored_tokens
    for row in rows:
        (served,), (known,) = there.chunks([row], 4096), here.chunks([row], 4096)
        expected = known.logprobs(served.ids)
        assert expected is not None
        torch.testing.assert_close(served.known, expected, atol=1e-4, rtol=0)
        top = known.logprobs(served.likeliest)
        assert top is not None
        likeliest = known.topk(K)
        assert likeliest is not None
        torch.testing.assert_close(top, known.logprobs(likeliest), atol=1e-4, rtol=0)


def test_a_run_that_it_teaches_is_that_of_the_same_model_here(
    url: str, teacher: Path, small_qwen3vl: Path, tmp_path: Path
) -> None:
    everything = "distill.k=20"
    served = loop.train(
        config(tmp_path / "served", small_qwen3vl, url, "run.steps=3", everything), Silent()
    ).directory
    path = f"teacher.path={teacher}"
    local = loop.train(
        small_config(tmp_path / "local", small_qwen3vl, path, "run.steps=3", everything), Silent()
    ).directory
    first, other = step_records(served)[0], step_records(local)[0]
    assert first["selected"] == other["selected"]
    # The support is the teacher's top k there, and the student's here.
    assert first["support"] == "teacher"
    assert first["loss"] == pytest.approx(other["loss"], rel=0.2)
    assert all(step["calls"] and not step.get("dropped") for step in step_records(served))
    assert verify(served).is_sound


def test_at_the_students_likeliest_tokens_loss_gradient_and_utility_are_those_of_the_model_here(
    choosing: str, teacher: Path, small_qwen3vl: Path, tmp_path: Path
) -> None:
    small_config(tmp_path, small_qwen3vl)  # Draws the pictures.
    data = PreparedSet.load(tmp_path / "data")
    examples = tuple(example for example in data.examples if example.has_crop)[:6]
    student, local = (open_model(path, device="cpu") for path in (small_qwen3vl, teacher))
    sampling = SamplingSettings(per_prompt=2, max_response_tokens=12)
    rollouts = Sampler(student, full_view, sampling).generate(
        PromptBatch(step=0, examples=examples)
    )
    rows = tuple(range(0, len(rollouts), 2))
    client = ScoringClient(Endpoint(url=choosing, model="a-teacher"), vocabulary=304)
    assert client.support("auto", sample_request(student.processor, K)) == "student"
    asked = ServedTeacher(
        client, student.processor, crop_view, tmp_path / "requests", k=K, limits=Limits()
    )
    likeliest = StudentPass(student, k=K).likeliest(rollouts, rows)
    there = asked.score(rollouts, rows, likeliest)
    here = FrozenTeacher(local, crop_view, tokens_per_batch=4096).score(rollouts, rows)
    learner, weights = Learner(student, OptimizerSettings()), student.trainable().values()
    found = []
    for scores in (there, here):
        objective = Distillation(scores, head=student.logits, settings=DistillSettings(k=K))
        done = learner.accumulate(rollouts, rows, objective)
        gradients = [weight.grad.flatten() for weight in weights if weight.grad is not None]
        found.append((done, torch.cat(gradients)))
        learner.zero_grad()
    (served, gradient), (expected, exact) = found
    error = float((gradient - exact).norm() / exact.norm())
    worst = max(abs(served.observed[row] / expected.observed[row] - 1) for row in rows)
    print(
        f"relative errors: loss {abs(float(served.loss / expected.loss) - 1):.1e}, gradient "
        f"{error:.1e}, utility of a row at most {worst:.1e}"
    )
    assert float(served.loss) == pytest.approx(float(expected.loss), rel=1e-4)
    assert error < 1e-4
    assert served.observed == pytest.approx(expected.observed, rel=1e-4)
    assert min(served.observed.values()) > 0


def test_a_run_at_the_students_likeliest_tokens_is_that_of_the_same_model_here(
    choosing: str, teacher: Path, small_qwen3vl: Path, tmp_path: Path
) -> None:
    settings = ("run.steps=3", "distill.k=20")
    served = loop.train(
        config(tmp_path / "served", small_qwen3vl, choosing, *settings, "teacher.support=student"),
        Silent(),
    ).directory
    local = loop.train(
        small_config(tmp_path / "local", small_qwen3vl, *settings, f"teacher.path={teacher}"),
        Silent(),
    ).directory
    for one, other in zip(step_records(served), step_records(local), strict=True):
        assert one["support"] == "student"
        assert one["selected"] == other["selected"]
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)
        assert one["utility"] == pytest.approx(other["utility"], rel=1e-4)
    assert verify(served, draws=True).is_sound


def test_vllm_may_sample_while_it_teaches(url: str, small_qwen3vl: Path, tmp_path: Path) -> None:
    engine = ("rollout.engine=vllm", "rollout.engine_cache_gib=0.25")
    runs = [
        loop.train(
            config(tmp_path / str(len(more)), small_qwen3vl, url, "run.steps=2", *more), Silent()
        ).directory
        for more in ((), engine)
    ]
    selected = [[step["selected"] for step in step_records(run)] for run in runs]
    assert selected[0] == selected[1]


def test_what_it_cannot_do_is_a_sentence(url: str, small_qwen3vl: Path, tmp_path: Path) -> None:
    with pytest.raises(AccessError, match=r"gives no log-probs at chosen ids"):
        loop.train(config(tmp_path / "s", small_qwen3vl, url, "teacher.support=student"), Silent())
    with pytest.raises(RefusedError, match=r"--max-logprobs 30, or lower distill\.k"):
        loop.train(config(tmp_path / "k", small_qwen3vl, url, "distill.k=30"), Silent())
    long = "rollout.max_response_tokens=600"
    with pytest.raises(ConfigError, match=r"reads at most 512 tokens.*--max-model-len"):
        loop.train(config(tmp_path / "long", small_qwen3vl, url, long), Silent())


def test_a_server_that_takes_no_pictures_is_named_before_the_run(
    teacher: Path, small_qwen3vl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "build_method", None)  # The model is not loaded.
    none = ("--limit-mm-per-prompt", '{"image":0,"video":0}')
    with (
        serving(teacher, tmp_path / "log", "--enable-scale-out", *none) as address,
        pytest.raises(RefusedError, match=r"Serve a model that reads pictures"),
    ):
        loop.train(config(tmp_path / "run", small_qwen3vl, address), Silent())


def test_a_teacher_that_reads_no_pictures_is_named_before_the_run(
    teacher: Path, small_qwen3vl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "build_method", None)  # The model is not loaded.
    known = json.loads((teacher / "config.json").read_text())["text_config"]
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim")
    settings = {name: known[name] for name in (*names, "num_attention_heads")}
    text = Qwen3ForCausalLM(Qwen3Config(**settings, num_key_value_heads=2))
    text.save_pretrained(tmp_path / "text")
    AutoTokenizer.from_pretrained(teacher).save_pretrained(tmp_path / "text")
    words = r"is not a multimodal model\. .*: serve a vision-language model"
    with serving(tmp_path / "text", tmp_path / "log", "--enable-scale-out") as address:
        for taught in ("teacher.support=auto", "teacher.support=student"):
            settings = config(tmp_path / taught, small_qwen3vl, address, taught)
            with pytest.raises(RefusedError, match=words):
                loop.train(settings, Silent())


@pytest.mark.parametrize("runner", ["url", "choosing"])
@pytest.mark.parametrize("size", [303, 305])
def test_a_teacher_with_another_vocabulary_is_named(
    runner: str, size: int, small_qwen3vl: Path, request: pytest.FixtureRequest
) -> None:
    endpoint = Endpoint(url=request.getfixturevalue(runner), model="a-teacher")
    sample = sample_request(Processor.load(small_qwen3vl), K)
    with pytest.raises(ModelError, match=f"predicts 304 token ids and the model .* {size}, so"):
        ScoringClient(endpoint, vocabulary=size).support("auto", sample)


def test_a_server_without_its_endpoint_is_named_before_the_run(
    teacher: Path, small_qwen3vl: Path, tmp_path: Path
) -> None:
    with (
        serving(teacher, tmp_path / "log") as address,
        pytest.raises(AccessError, match=r"are disabled.*--enable-scale-out"),
    ):
        loop.train(config(tmp_path / "run", small_qwen3vl, address), Silent())
