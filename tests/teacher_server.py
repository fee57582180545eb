"""A stand-in for a vLLM server that scores rows with a real small model, well or badly."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image
from serving_fixtures import served
from tokenizers import Tokenizer
from torch import Tensor

from bas_opd.model.loading import open_model
from bas_opd.serving.scoring import ScoringRequest
from bas_opd.teacher.server_teacher import _pixels
from bas_opd.types import Prompt

Fault = Callable[[int, dict[str, Any]], str | None]
"""Of a request's number and content: what goes wrong with it, if anything."""


STEPS, PROMPTS = 16, 16
"""The most that any run here has, prompts in each step."""


def no_fault(_: int, __: dict[str, Any]) -> None:
    return None


class TeacherServer:
    """Answers as vLLM 0.32 does, as far as a teacher is concerned."""

    def __init__(self, folder: Path, *, max_model_len: int = 4096, version: str = "0.32.0") -> None:
        self.model = open_model(folder, device="cpu", frozen=True)
        self.max_model_len, self.version = max_model_len, version
        self.fault: Fault = no_fault
        self.max_logprobs = 10_000
        self.is_text_only = False
        """Whether its model knows no pictures."""
        self.sees = True
        """Whether it was started so that it takes pictures."""
        self.vocabulary = len(self.model.head.weight)  # type: ignore[arg-type]
        """How many token ids it says that its model predicts."""
        self.chooses = True
        """Whether it runs the model runner that scores chosen ids."""
        self.scores = True
        """Whether it was started with --enable-scale-out."""
        self.shift = 0
        """What is added to the ids of its tokenizer."""
        self.tokenizer: Tokenizer = self.model.processor.tokenizer.backend_tokenizer
        """As vLLM's, it reads special tokens in a text, whatever `add_special_tokens` says."""
        self.requests: list[dict[str, Any]] = []
        """Contents of all requests to score."""
        self.answered: Counter[str] = Counter()
        """Content -> good answers that were sent whole."""
        self.bytes = b""
        """All that came in: request lines, headers and bodies."""
        self.headers: list[dict[str, str]] = []
        self.closing = threading.Event()
        self.lock = threading.Lock()
        self._known: dict[str, tuple[list[Any], Tensor | None]] = {}
        self._http = _Http(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    @contextmanager
    def running(self) -> Iterator[TeacherServer]:
        with served(self._http, self.closing):
            yield self

    def settings(self, *overrides: str) -> tuple[str, ...]:
        """The settings of a run that is taught by this server."""
        return (f"teacher.server={self.url}", "teacher.model=a-teacher", *overrides)

    def key(self, request: dict[str, Any]) -> str:
        content = [request[name] for name in ("token_ids", "content_parts", "sampling_params")]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def asked_for(self, charged: Iterable[str]) -> list[str]:
        """The names of the contents of all requests, by what was sent; each must be charged."""
        known, names = set(charged), []
        for request in self.requests:
            (name,) = self._stored_as(request) & known
            names.append(name)
        return names

    def _stored_as(self, request: dict[str, Any]) -> set[str]:
        """The names that its answer may be stored under, one for each prompt of each step."""
        params, ids = request["sampling_params"], request["token_ids"]
        length = params["prompt_logprob_start"] + 1
        start = length - (self.prompt(request).length - len(ids))
        asked = ScoringRequest(
            prompt=tuple(ids[:start]),
            response=tuple(ids[start:]),
            image=b"",
            pixels=_pixels(picture_of(request)),
            prompt_length=length,
            k=params["prompt_logprobs"],
            chosen=numpy.array(params["prompt_logprob_token_ids"], dtype=numpy.int32),
        )
        choosers = product(range(STEPS), range(PROMPTS))
        return {replace(asked, chooser=each).key(request["model"]) for each in choosers}

    def refusal(self, request: dict[str, Any]) -> str | None:
        """What it says of a request that it does not compute."""
        params = request["sampling_params"]
        wanted, k = params.get("prompt_logprob_token_ids"), params["prompt_logprobs"]
        if self.is_text_only:
            return "a-teacher is not a multimodal model"
        if not self.sees:
            return "At most 0 image(s) may be provided in one prompt."
        if k > self.max_logprobs:
            limit = f"which is greater than max allowed: {self.max_logprobs}"
            return f"Requested prompt logprobs of {k}, {limit}"
        is_old = self.version < "0.32" and "dev" not in self.version
        if is_old:  # Such versions ignore what they do not know.
            wanted = None
        size = f"Vocabulary size: {self.vocabulary}"
        if wanted is not None and max(map(max, wanted)) >= self.vocabulary:
            return (
                "prompt_logprob_token_ids contain out-of-vocab token ids (-1 pads a row). " + size
            )
        if beyond := [i for i in map(int, params.get("logit_bias", {})) if i >= self.vocabulary]:
            return f"token_id(s) {beyond} in logit_bias contain out-of-vocab token ids. {size}"
        if wanted is None:
            return None
        if not self.chooses:
            return "prompt_logprob_token_ids requires the V2 model runner"
        rows = self.prompt(request).length - 1 - params["prompt_logprob_start"]
        if len(wanted) != rows:
            return (
                f"prompt_logprob_token_ids has {len(wanted)} rows, but the prompt has {rows} "
                "scored rows"
            )
        return None

    def prompt(self, request: dict[str, Any]) -> Prompt:
        """What the model reads: the image token stands for all of a picture."""
        processor = self.model.processor
        features = processor.images(images=picture_of(request), return_tensors="pt")
        grid = features["image_grid_thw"]
        size = int(grid.prod()) // processor.images.merge_size**2
        ids = torch.tensor(processor._expand(request["token_ids"], size))
        return Prompt(input_ids=ids, pixel_values=features["pixel_values"], grid=grid)

    @torch.no_grad()
    def logprobs(
        self, request: dict[str, Any]
    ) -> tuple[list[dict[int, dict[str, Any]] | None], Tensor | None]:
        """Log-probs at every token, as `prompt_logprobs` has them, and those at chosen ids."""
        prompt = self.prompt(request)
        ids, grid = prompt.input_ids, prompt.grid
        network: Any = self.model.network
        hidden = self.model._forward(
            ids[None],
            self.model._positions(prompt)[:, None],
            None,
            pixels={"pixel_values": prompt.pixel_values, "image_grid_thw": grid},
        )
        table = network.lm_head(hidden)[0].float().log_softmax(-1)
        k = request["sampling_params"]["prompt_logprobs"]
        places: list[dict[int, dict[str, Any]] | None] = [None]
        for place, token in enumerate(ids[1:].tolist()):
            top = table[place].topk(min(k, table.shape[-1])).indices.tolist()
            places.append({
                each: {"logprob": float(table[place, each]), "rank": 1, "decoded_token": None}
                for each in dict.fromkeys([token, *top])
            })  # fmt: skip
        wanted = request["sampling_params"].get("prompt_logprob_token_ids")
        if wanted is None:
            return places, None
        start = request["sampling_params"]["prompt_logprob_start"]
        return places, table[start:-1].gather(-1, torch.tensor(wanted))

    def reply(self, request: dict[str, Any], fault: str | None) -> dict[str, Any]:
        key = self.key(request)
        with self.lock:
            if key not in self._known:
                self._known[key] = self.logprobs(request)
        places: Any
        places, chosen = self._known[key]
        match fault:
            case "without log-probs":
                places = None
            case "few":
                places = [each and dict(list(each.items())[:1]) for each in places]
            case "other tokens":
                places = [places[0], *(dict(list(p.items())[1:]) for p in places[1:])]
            case "wide":
                places = [each and {**each, 99_999: {"logprob": -50.0}} for each in places]
            case "other picture":
                places = [None, *places]
            case "more than 1":
                places = [each and {t: {"logprob": 0.0} for t in each} for each in places]
            case "without chosen":
                chosen = None
            case "fewer chosen" if chosen is not None:
                chosen = chosen[:, 1:]
            case "chosen of other places" if chosen is not None:
                chosen = chosen.roll(1, 0)
            case "chosen not finite" if chosen is not None:
                chosen = chosen.clone().fill_(-torch.inf)
        sent = None if chosen is None else as_numpy_file(chosen)
        if fault == "chosen in an archive":
            sent = base64.b64encode(b"PK\x03\x04 no archive either").decode()
        return {
            "request_id": f"generate-tokens-{'x' if fault == 'other request' else ''}"
            + ("" if fault == "other request" else request["request_id"]),
            "choices": [{"index": 0, "token_ids": [1]}],
            "prompt_logprobs": places,
            "prompt_token_id_logprobs": sent,
        }


def picture_of(request: dict[str, Any]) -> Image.Image:
    url = request["content_parts"][0]["url"]
    return Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))


def as_numpy_file(values: Tensor) -> str:
    """Values as vLLM sends arrays."""
    file = io.BytesIO()
    numpy.save(file, values.numpy())
    return base64.b64encode(file.getvalue()).decode()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect, as some tests do."""


def _handler(server: TeacherServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        raw_requestline: bytes

        def _note(self, body: bytes = b"") -> None:
            lines = "".join(f"{name}: {value}\n" for name, value in self.headers.items())
            with server.lock:
                server.bytes += self.raw_requestline + lines.encode("latin-1") + body + b"\n"
                server.headers.append(dict(self.headers))

        def do_GET(self) -> None:
            self._note()
            card = {"id": "a-teacher", "max_model_len": server.max_model_len}
            content = {"/v1/models": {"data": [card]}, "/version": {"version": server.version}}
            self._send(200, content[self.path])

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            content = json.loads(raw)
            self._note(raw)
            if self.path == "/tokenize":
                more = content.get("add_special_tokens", True)
                ids = server.tokenizer.encode(content["prompt"], add_special_tokens=more).ids
                self._send(200, {"tokens": [each + server.shift for each in ids]})
                return
            assert self.path == "/inference/v1/generate"
            if not server.scores:
                self._send(403, {"error": {"message": "Scale-out endpoints are disabled."}})
                return
            if not content:
                self._send(400, {"error": {"message": "2 validation errors"}})
                return
            if words := server.refusal(content):
                self._send(400, {"error": {"message": words}})
                return
            with server.lock:
                number = len(server.requests)
                server.requests.append(content)
            self._answer(content, server.fault(number, content))

        def _answer(self, content: dict[str, Any], fault: str | None) -> None:
            if fault == "hangs up":
                self.close_connection = True
            elif fault == "stalls":
                server.closing.wait(30)
            elif fault and fault.isdigit():
                self._send(int(fault), {"error": {"message": "At most 0 image(s) may be given"}})
            elif fault == "nonsense":
                self._send(200, [])
            else:
                reply = server.reply(content, fault)
                for _ in range(2 if fault == "twice" else 1):
                    self._send(200, reply)
                if fault in (None, "twice"):
                    with server.lock:
                        server.answered[server.key(content)] += 1

        def _send(self, status: int, content: Any) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    return Handler
