from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

from bas_opd.compute import compiling
from bas_opd.errors import ConfigError, ModelError
from bas_opd.model.loading import LoraSettings, load_model, open_model, resolve_device

CPU = torch.device("cpu")


@pytest.fixture(params=["small_qwen35", "small_qwen3vl", "small_qwen25vl"])
def folder(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


@pytest.fixture
def copy(small_qwen35: Path, tmp_path: Path) -> Path:
    """A folder of its own, to be damaged."""
    return shutil.copytree(small_qwen35, tmp_path / "model")


def trained(network: torch.nn.Module) -> list[str]:
    return [name for name, parameter in network.named_parameters() if parameter.requires_grad]


def test_parameters_are_fp32_even_where_the_checkpoint_is_not(copy: Path) -> None:
    half = {name: value.bfloat16() for name, value in load_file(copy / "model.safetensors").items()}
    save_file(half, copy / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    network = load_model(copy, device=CPU)
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    assert len(trained(network)) == len(list(network.parameters()))


def test_a_network_comes_in_evaluation_mode(folder: Path) -> None:
    assert not load_model(folder, device=CPU).training
    assert not load_model(folder, device=CPU, gradient_checkpointing=True).training


def test_gradient_checkpointing_keeps_less_and_changes_no_gradient(folder: Path) -> None:
    gradients, kept = [], []
    for checkpointing in (False, True):
        network = load_model(folder, device=CPU, gradient_checkpointing=checkpointing)
        saved: list[int] = []

        def pack(tensor: torch.Tensor, saved: list[int] = saved) -> torch.Tensor:
            saved.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = network(input_ids=torch.arange(40)[None], use_cache=False).logits.square().mean()
        loss.backward()
        kept.append(sum(saved))
        gradients.append({n: p.grad for n, p in network.named_parameters() if p.grad is not None})
    assert kept[1] < kept[0] / 2
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)


def test_adapters_change_nothing_until_trained(folder: Path) -> None:
    ids = torch.arange(20)[None]
    with torch.no_grad():
        plain = load_model(folder, device=CPU)(input_ids=ids).logits
        adapted = load_model(folder, device=CPU, lora=LoraSettings())(input_ids=ids).logits
    assert torch.equal(plain, adapted)


def test_adapters_of_the_language_model_leave_the_vision_tower_alone(folder: Path) -> None:
    names = trained(load_model(folder, device=CPU, lora=LoraSettings(rank=2)))
    assert names
    assert all("lora_" in name and ".language_model." in name for name in names)


def test_adapters_on_all_linear_layers_reach_the_vision_tower(folder: Path) -> None:
    names = trained(load_model(folder, device=CPU, lora=LoraSettings(targets="all-linear")))
    assert any(".visual." in name for name in names)


@pytest.mark.parametrize("targets", [("q_proj",), r".*\.q_proj"])
def test_adapters_go_where_they_are_told(folder: Path, targets: str | tuple[str, ...]) -> None:
    names = trained(load_model(folder, device=CPU, lora=LoraSettings(targets=targets)))
    assert names
    assert all(".q_proj." in name for name in names)


def test_adapters_are_a_function_of_their_seed_alone(small_qwen35: Path) -> None:
    def weights(seed: int) -> torch.Tensor:
        network = load_model(small_qwen35, device=CPU, lora=LoraSettings(seed=seed))
        torch.rand(1)
        return torch.cat([p.flatten() for p in network.parameters() if p.requires_grad])

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


def test_loading_leaves_the_global_generator_alone(folder: Path) -> None:
    before = torch.get_rng_state()
    load_model(folder, device=CPU, lora=LoraSettings())
    assert torch.equal(torch.get_rng_state(), before)


def test_adapters_are_fp32(small_qwen35: Path) -> None:
    network = load_model(small_qwen35, device=CPU, lora=LoraSettings())
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}


def test_targets_that_match_nothing_are_refused(small_qwen35: Path) -> None:
    with pytest.raises(ModelError, match="found nothing to adapt"):
        load_model(small_qwen35, device=CPU, lora=LoraSettings(targets=("no_such_layer",)))


def test_missing_peft_is_said(small_qwen35: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ModelError, match="pip install peft"):
        load_model(small_qwen35, device=CPU, lora=LoraSettings())


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere does not exist"):
        load_model(tmp_path / "nowhere", device=CPU)


def test_pickled_weights_are_never_loaded(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    (copy / "pytorch_model.bin").write_bytes(b"anything")
    with pytest.raises(ModelError, match=r"Pickled weights \(\*\.bin\) are not loaded"):
        load_model(copy, device=CPU)


def test_a_parameter_that_is_missing_is_never_made_up(copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    del weights[next(name for name in weights if name.endswith("A_log"))]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="lack 1 parameters"):
        load_model(copy, device=CPU)


def test_weights_of_another_shape_are_refused(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config["text_config"]["intermediate_size"] = 96
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"do not fit its config\.json \(RuntimeError: "):
        load_model(copy, device=CPU)


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (ImportError("No module named 'fla'."), ModelError, "cannot be imported: No module named"),
        (KeyError("rope"), ModelError, r"\(KeyError: 'rope'\)"),
        (MemoryError("full"), MemoryError, "full"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), RuntimeError, "allocate"),
    ],
)
def test_what_goes_wrong_while_a_network_is_read_is_called_by_its_name(
    error: Exception,
    kind: type[Exception],
    says: str,
    small_qwen35: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(AutoModelForImageTextToText, "from_pretrained", fails)
    with pytest.raises(kind, match=says) as caught:
        load_model(small_qwen35, device=CPU)
    assert type(caught.value) is kind


@pytest.mark.parametrize(("place", "works"), [("pad_token_id", True), ("bos_token_id", False)])
def test_no_token_for_padding_may_be_minus_one(place: str, works: bool, copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config["text_config"][place] = -1
    (copy / "config.json").write_text(json.dumps(config))
    if works:
        open_model(copy, device="cpu")
        return
    with pytest.raises(ModelError, match="the number of a token"):
        open_model(copy, device="cpu")


def test_damaged_weights_are_refused(copy: Path) -> None:
    (copy / "model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00 cut off")
    with pytest.raises(ModelError, match="No safetensors weights could be read"):
        load_model(copy, device=CPU)


def test_auto_is_a_device_that_exists() -> None:
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert resolve_device("auto").type == expected
    assert resolve_device("cpu") == CPU


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="no device named 'gpu'"):
        resolve_device("gpu")


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="torch sees no GPU"):
        resolve_device("cuda:0")


def saved_adapters(base: Path, folder: Path) -> Path:
    """Adapters that were trained, as peft saves them."""
    network: Any = load_model(base, device=CPU, lora=LoraSettings(rank=2))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    network.save_pretrained(folder)
    return folder


def test_trained_adapters_are_merged_into_the_weights(small_qwen35: Path, tmp_path: Path) -> None:
    adapter = saved_adapters(small_qwen35, tmp_path / "adapter")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    merged = load_model(small_qwen35, device=CPU, adapter=adapter)
    assert torch.rand(3).equal(expected), "loading leaves the random numbers of the program alone"
    base = load_model(small_qwen35, device=CPU)
    adapted = PeftModel.from_pretrained(load_model(small_qwen35, device=CPU), str(adapter)).eval()
    assert dict(merged.named_parameters()).keys() == dict(base.named_parameters()).keys()
    ids = torch.arange(20)[None]
    with torch.no_grad():
        ours, theirs, without = (
            network(input_ids=ids).logits for network in (merged, adapted, base)
        )
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert (ours - without).abs().max() > 0.01


def test_pickled_adapters_are_refused(small_qwen35: Path, tmp_path: Path) -> None:
    adapter = saved_adapters(small_qwen35, tmp_path / "adapter")
    tensors = load_file(adapter / "adapter_model.safetensors")
    (adapter / "adapter_model.safetensors").unlink()
    torch.save(tensors, adapter / "adapter_model.bin")
    with pytest.raises(ModelError, match="Pickled adapters"):
        load_model(small_qwen35, device=CPU, adapter=adapter)


def test_adapters_of_another_model_are_refused(
    small_qwen35: Path, small_qwen25vl: Path, tmp_path: Path
) -> None:
    adapter = saved_adapters(small_qwen35, tmp_path / "adapter")
    with pytest.raises(ModelError, match="cannot be loaded into this model"):
        load_model(small_qwen25vl, device=CPU, adapter=adapter)


@pytest.mark.parametrize("content", ["{", "[1]", '{"eos_token_id": "end"}'])
def test_a_damaged_generation_config_is_named_before_weights_are_read(
    copy: Path, content: str
) -> None:
    (copy / "generation_config.json").write_text(content)
    (copy / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"generation_config\.json"):
        open_model(copy, device="cpu")


def test_a_generation_config_that_transformers_would_not_save_is_saved_as_it_was(
    copy: Path, tmp_path: Path
) -> None:
    settings = json.loads((copy / "generation_config.json").read_text())
    odd = {**settings, "temperature": 0.5, "top_p": 0.9}  # without do_sample
    (copy / "generation_config.json").write_text(json.dumps(odd))
    open_model(copy, device="cpu").save(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "generation_config.json").read_text())
    assert {name: saved.get(name) for name in odd} == odd


def test_an_open_model_has_its_processor_and_precision(small_qwen35: Path) -> None:
    model = open_model(small_qwen35, device="cpu", thinking=True, max_pixels=90_000)
    assert (model.precision, model.device) == (torch.float32, CPU)
    assert model.processor.thinking
    assert model.processor.images.size["longest_edge"] == 90_000
    half = open_model(small_qwen35, device="cpu", precision="bfloat16")
    assert half.precision is torch.bfloat16


@pytest.mark.parametrize(
    ("file", "field", "value", "says"),
    [
        ("config.json", "text_config.num_hidden_layers", -1, "text_config.num_hidden_layers"),
        ("config.json", "text_config.vocab_size", "many", "text_config.vocab_size"),
        ("config.json", "vision_config.patch_size", 0, "vision_config.patch_size"),
        ("config.json", "text_config.hidden_size", 1.5, "text_config.hidden_size"),
        ("config.json", "image_token_id", "x", "image_token_id"),
        ("config.json", "text_config.rope_parameters", 7, "config.json"),
        ("config.json", "text_config.hidden_act", "x", "config.json"),
        ("config.json", "vision_config", [], "config.json"),
        ("processor_config.json", "image_processor.patch_size", 0, "image_processor.patch_size"),
        ("processor_config.json", "image_processor.merge_size", "2", "image_processor.merge_size"),
        ("processor_config.json", "image_processor.image_mean", "grey", "processor_config.json"),
        ("processor_config.json", "image_processor.image_std", 0, "processor_config.json"),
        ("tokenizer_config.json", "pad_token", 7, "tokenizer_config.json"),
        ("generation_config.json", "eos_token_id", "end", "generation_config.json"),
        ("generation_config.json", "eos_token_id", [], "generation_config.json"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_nonsense_in_a_file_of_the_model_is_a_sentence_with_its_place(
    file: str, field: str, value: object, says: str, small_qwen35: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(small_qwen35, tmp_path / "model")
    path = folder / file
    settings = json.loads(path.read_text()) if path.exists() else {}
    *above, last = field.split(".")
    inner = settings
    for name in above:
        inner = inner[name]
    inner[last] = value
    path.write_text(json.dumps(settings))
    with pytest.raises(ModelError) as caught:
        open_model(folder, device="cpu")
    assert says in str(caught.value)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    "template",
    ["{% for", "{{ 1 / 0 }}", "{{ messages[7].content }}", "{{ messages | join(7) | int + [] }}"],
)
def test_a_template_that_fails_is_a_sentence(
    template: str, small_qwen35: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(small_qwen35, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(ModelError, match="chat template"):
        open_model(folder, device="cpu")


def test_kernels_stay_as_chosen_until_a_model_asks_for_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "_chosen", "auto")
    gpu = torch.device("cuda")
    assert compiling.is_fast(gpu)
    assert not compiling.is_fast(CPU)
    open_model(folder, device="cpu", kernels="reference")
    assert not compiling.is_fast(gpu)
    open_model(folder, device="cpu")
    assert not compiling.is_fast(gpu)
    open_model(folder, device="cpu", kernels="auto")
    assert compiling.is_fast(gpu)
