"""A tiny text student and teacher in TRL's distillation trainers, and a stand-in for vLLM."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from serving_fixtures import served
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM
from trl.trainer.distillation_config import DistillationConfig

from bas_opd.integrations.trl import BudgetedDistillationTrainer
from bas_opd.model.base import small_base
from bas_opd.select import LearnedSelector

ROWS, MICRO = 12, 4
"""Rows of a step, and of a micro-batch."""


def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(small_base())


def tiny(seed: int) -> Qwen3ForCausalLM:
    """A text model whose distributions are far from uniform."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer()),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,  # vLLM has no kernel for smaller ones.
    )
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.mul_(20.0)
    return model


def prompts() -> Dataset:
    return Dataset.from_list([{"prompt": f"What is {'the ' * (i % 5)}{i}?"} for i in range(36)])


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    """Settings of a short run of TRL on a CPU."""
    known: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": MICRO,
        "gradient_accumulation_steps": ROWS // MICRO,
        "max_steps": 3,
        "max_completion_length": 6,
        "learning_rate": 1e-2,
        "bf16": False,
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
        "seed": 3,
    }
    return known | changes


def budgeted(folder: Path, *, selector: Any = None, ratio: str = "0.3", **changes: Any) -> Any:
    """A trainer with a local teacher."""
    return BudgetedDistillationTrainer(
        model=tiny(0),
        teacher_model=tiny(1),
        args=DistillationConfig(**settings(folder, **changes)),
        train_dataset=prompts(),
        eval_dataset=prompts().select(range(8)),
        processing_class=tokenizer(),
        query_ratio=ratio,
        selector=selector or LearnedSelector(replay_start=4),
    )


def asking_a_server(
    folder: Path, url: str, *, selector: Any = None, repeat_requests: bool = False, **changes: Any
) -> Any:
    """A trainer with a teacher behind a server."""
    from trl.experimental.server_distillation import ServerDistillationConfig

    from bas_opd.integrations.trl_server import BudgetedServerDistillationTrainer

    known = {"beta": 0.0, "loss_top_k": 8, "teacher_model_server_url": url}
    return BudgetedServerDistillationTrainer(
        model=tiny(0),
        args=ServerDistillationConfig(**settings(folder, **{**known, **changes})),
        train_dataset=prompts(),
        processing_class=tokenizer(),
        query_ratio="0.5",
        selector=selector or LearnedSelector(replay_start=4),
        repeat_requests=repeat_requests,
    )


class Watched:
    """What a trainer sampled and selected, and which rows its teacher saw, in this order."""

    def __init__(self, trainer: Any) -> None:
        self.events: list[tuple[str, Any]] = []
        self.sampled: list[list[tuple[int, ...]]] = []
        """Prompt and response of every row of each step."""
        sample, select = trainer._generate_and_score_completions, trainer.gate.selector.select

        def sampling(inputs: Any) -> Any:
            batch = sample(inputs)
            self.sampled.append(sequences(batch))
            return batch

        def selecting(*args: Any, **kwargs: Any) -> Any:
            selection = select(*args, **kwargs)
            self.events.append(("select", selection.rows))
            return selection

        def asking(_: Any, __: Any, given: dict[str, Any]) -> None:
            self.events.append(("teacher", unpadded(given["input_ids"], given["attention_mask"])))

        trainer._generate_and_score_completions = sampling
        trainer.gate.selector.select = selecting
        if trainer.teacher_model is not None:
            backbone = trainer.teacher_model.base_model
            backbone.register_forward_pre_hook(asking, with_kwargs=True)

    @property
    def selected(self) -> list[tuple[int, ...]]:
        """Rows that were selected in each step."""
        return [rows for kind, rows in self.events if kind == "select"]

    @property
    def asked(self) -> list[list[tuple[int, ...]]]:
        """Prompt and response of every row that the teacher computed in each step."""
        steps: list[list[tuple[int, ...]]] = []
        for kind, rows in self.events:
            if kind == "select":
                steps.append([])
            else:
                steps[-1].extend(rows)
        return steps


def unpadded(ids: torch.Tensor, mask: torch.Tensor) -> list[tuple[int, ...]]:
    return [tuple(row[keep.bool()].tolist()) for row, keep in zip(ids, mask, strict=True)]


def sequences(batch: dict[str, Any]) -> list[tuple[int, ...]]:
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    return unpadded(ids, torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1))


class CompletionsServer:
    """Scores prompts as vLLM's completions endpoint does, with the tiny teacher."""

    def __init__(self) -> None:
        self.model = tiny(1)
        self.prompts: list[list[int]] = []
        """Every sequence that came in."""
        self.failures = 0
        """Requests that it computes, but answers with `status`."""
        self.status = 503
        """0: it hangs up."""
        self.closing = threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    @contextmanager
    def running(self) -> Iterator[CompletionsServer]:
        with served(self._http, self.closing):
            yield self

    @torch.no_grad()
    def scored(self, sequence: list[int], k: int, temperature: float) -> list[Any]:
        """Log-probs at every token: those of the k likeliest, and of the token itself."""
        logits = self.model(input_ids=torch.tensor([sequence])).logits[0]
        table = (logits / temperature).log_softmax(-1)
        places: list[Any] = [None]
        for place, token in enumerate(sequence[1:]):
            order = table[place].argsort(descending=True).tolist()
            kept = dict.fromkeys([*order[:k], token])
            places.append({
                str(each): {"logprob": float(table[place, each]), "rank": order.index(each) + 1}
                for each in kept
            })  # fmt: skip
        return places


def _handler(server: CompletionsServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send({"data": [{"id": "a-teacher"}]})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.prompts.extend(asked["prompt"])
            k, heat = asked["prompt_logprobs"], asked["temperature"]
            scored = [server.scored(each, k, heat) for each in asked["prompt"]]
            if server.failures:
                server.failures -= 1
                if server.status:
                    self._send({"error": "overloaded"}, status=server.status)
                return
            self._send({"choices": [{"prompt_logprobs": each} for each in scored]})

        def _send(self, content: Any, status: int = 200) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    return Handler
