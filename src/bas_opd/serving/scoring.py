"""A client of a vLLM server that returns log-probs of given response tokens.

One request scores one row: `POST /inference/v1/generate` takes token ids as they are, so nothing is
tokenised again, and a picture as `content_parts` (vLLM 0.28 and newer). It asks for one new token,
which is not used, and for the log-probs of the prompt, whose end is the response: the likeliest
tokens of each place, and chosen ones where the server can score them (vLLM 0.32 with its second
model runner).
"""

from __future__ import annotations

import base64
import io
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

import numpy
from numpy.typing import NDArray

from bas_opd.errors import ConfigError, ModelError
from bas_opd.files import hash_of
from bas_opd.serving.backoff import SharedBackoff, Turn
from bas_opd.serving.client import AccessError, RefusedError, ServerClient, ServerError
from bas_opd.serving.endpoint import Endpoint, RequestFailure, exchange
from bas_opd.text import counted

if TYPE_CHECKING:
    from bas_opd.types import TeacherSupport

OLDEST = (0, 28)
"""The first version of vLLM whose endpoint takes a picture together with token ids."""
CHOOSING = (0, 32)
"""The first version whose `prompt_logprob_token_ids` is known here."""
SCORING = "/inference/v1/generate"
NO_TOKEN = 2**31 - 1
"""An id that no vocabulary has."""
BYTES_PER_LOGPROB = 128
"""Most bytes of one log-prob in a reply."""
EMPTY_SECONDS = 20.0
"""Longest wait for the reply to an empty request, which needs no computation."""
AWAY_SECONDS = 300.0
"""Longest time from the first failed round to the last: each round may take a whole time-out."""
MOST_APART = 0.1
"""Largest mean distance between two log-probs of one token in a reply, which rounding explains."""
TEXT = "The 3 red cups, na\u00efve fa\u00e7ade: \u7ea2\u8272 \u0663\n\n\tdef f(x): return x**2 "


Ids = NDArray[numpy.int32]
AskedSupport = Literal["auto", "student", "teacher"]
"""Whose likeliest tokens are asked for; auto: the student's if the server can."""


class AnswerError(ServerError):
    """A server answered, but not what was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringRequest:
    """A prompt with one picture and a response to it, as token ids."""

    prompt: tuple[int, ...]
    """With one image token."""
    response: tuple[int, ...]
    image: bytes
    """In PNG."""
    prompt_length: int
    """Tokens of the prompt with all tokens of the picture."""
    k: int
    """Log-probs wanted at each token of the response."""
    chosen: Ids | None = None  # [token, k]
    """Ids whose log-probs are wanted beside the likeliest ones, for each token of the response."""
    chooser: tuple[int, int] = (0, 0)
    """The step and the place of the prompt for which the student chose them."""
    pixels: str = ""
    """Hash of size, mode and pixels of the picture: other libraries write them in other bytes."""

    @property
    def tokens(self) -> int:
        """Tokens that the server reads."""
        return self.prompt_length + len(self.response)

    @property
    def charged(self) -> int:
        """Tokens that the server reads, and the one that it generates."""
        return self.tokens + 1

    def key(self, model: str) -> str:
        """Return the hash of the content.

        Chosen ids count by the prompt of the step that they were chosen for: the student may see
        two pictures where the teacher sees one. After a resume, rounding may choose a few others,
        and the stored answer, which has its own ids, must still be found.
        """
        content = [model, self.k, list(self.prompt), list(self.response), self.pixels]
        return hash_of(content if self.chosen is None else [*content, *self.chooser])

    def body(self, model: str, request_id: str, **more: object) -> bytes:
        """Return the request as vLLM reads it, with `more` sampling parameters."""
        url = f"data:image/png;base64,{base64.b64encode(self.image).decode()}"
        chosen: dict[str, Any] = {}
        if self.chosen is not None:  # The row of a place predicts the token after it.
            chosen["prompt_logprob_token_ids"] = self.chosen.tolist()
            chosen["prompt_logprob_start"] = self.prompt_length - 1
        content = {
            "request_id": request_id,
            "model": model,
            "token_ids": [*self.prompt, *self.response],
            "content_parts": [{"type": "image_url", "url": url}],
            "sampling_params": {
                "prompt_logprobs": self.k,
                "max_tokens": 1,
                "temperature": 0.0,
                "detokenize": False,
                **chosen,
                **more,
            },
        }
        return json.dumps(content).encode("ascii")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The k likeliest tokens at each token of a response, and the log-prob of that token itself."""

    ids: list[list[int]]  # [token][k], the likeliest first
    logprobs: list[list[float]]
    sampled: list[float]  # [token]
    chosen: list[list[float]] | None = None  # [token][k], in the order that was asked for


class ScoringClient(ServerClient):
    """Asks for log-probs.

    After a temporary failure all its requests wait, and one goes first. After as many failed rounds
    in a row as a request has tries, or after `AWAY_SECONDS` of them, nothing more is sent.
    """

    def __init__(self, endpoint: Endpoint, *, vocabulary: int) -> None:
        super().__init__(endpoint)
        self.vocabulary = vocabulary
        self.root = endpoint.url.rstrip("/").removesuffix("/v1")
        self._backoff = SharedBackoff(endpoint.at_once)
        self._last = ""

    def score(self, asked: ScoringRequest, charge: Callable[[], bool]) -> Answer | None:
        """Return the answer to a request; temporary failures are retried.

        `charge` is called before each try. If it returns False, nothing is sent, and there is no
        answer. While the server is away nothing is charged: an empty request finds out whether it
        is back.
        """
        end, tries = self.endpoint, 0
        url = f"{self.root}{SCORING}"
        room = 1_000_000 + BYTES_PER_LOGPROB * (asked.k + 1) * asked.tokens
        while True:
            turn = self._backoff.begin(self._check_sending)
            try:
                if turn.is_probe:
                    self._ask_nothing()
                    self._backoff.heard(turn)
                if not charge():
                    return None
                tries += 1
                request_id = uuid4().hex
                body = asked.body(end.model, request_id)
                raw = exchange(self._http, end, url, body, max_bytes=room)
                answer = _parse(raw, asked, request_id, self.vocabulary, end.url)
                self._backoff.succeeded(turn)
                return answer
            except RequestFailure as failure:
                self._hold(turn, failure)
                try:
                    self._check_retry(failure, max(1, tries))
                except RefusedError as error:
                    raise RefusedError(f"{error} {_advice(str(failure), asked.k)}") from None
            finally:
                self._backoff.end(turn)

    def check(self, *, encode: Callable[[str], Sequence[int]], text: str, longest: int) -> None:
        """Raise unless the server has the model, its tokens and room for the longest row.

        `encode` tokenises as the student does; `text` is what is compared. None of these requests
        makes the model compute.
        """
        end = self.endpoint
        listed = self._get("/v1/models").get("data")
        served = {
            each.get("id"): each
            for each in (listed if isinstance(listed, list) else ())
            if isinstance(each, dict)
        }
        if end.model not in served:
            raise AccessError(
                f"{end.url} serves {', '.join(map(repr, served)) or 'no model'}, not "
                f"{end.model!r}. Set teacher.model to a name that it serves."
            )
        version, number = self._version()
        if number is not None and number < OLDEST:
            raise AccessError(
                f"{end.url} runs vLLM {version}, which cannot score a picture with given token "
                f"ids. Use vLLM {OLDEST[0]}.{OLDEST[1]} or newer."
            )
        self._check_scoring()
        room = served[end.model].get("max_model_len")
        if type(room) is int and room < longest:
            raise ConfigError(
                f"{end.url} reads at most {room:,} tokens, but the longest prompt with the longest "
                f"response has {longest:,}. Serve the model with --max-model-len {longest}, or "
                "lower rollout.max_response_tokens or model.max_pixels."
            )
        asked = {"model": end.model, "prompt": text, "add_special_tokens": False}
        if self._get("/tokenize", asked).get("tokens") != list(encode(text)):
            raise ModelError(
                f"{end.model!r} at {end.url} has another tokenizer than the model that it would "
                "teach: the same text has other token ids. Use a teacher with the same tokenizer."
            )

    def support(self, asked: AskedSupport, sample: ScoringRequest) -> TeacherSupport:
        """Return at whose likeliest tokens log-probs are asked for.

        `sample` has chosen ids for one place too many. Raise if the server refuses its picture or
        its k, or has another vocabulary than the student.
        """
        self._check_vocabulary(replace(sample, chosen=None))
        version, number = self._version()
        is_old = number is not None and number < CHOOSING
        lack = f"runs vLLM {version}" if is_old else self._lack(sample)
        if asked == "student" and lack:
            raise AccessError(
                f"teacher.support is student, but {self.endpoint.url} gives no log-probs at chosen "
                f"ids (prompt_logprob_token_ids): it {lack}. Use vLLM 0.32 or newer with "
                "its second model runner (VLLM_USE_V2_MODEL_RUNNER=1), or set teacher.support=auto."
            )
        return "teacher" if lack or asked == "teacher" else "student"

    def _check_vocabulary(self, sample: ScoringRequest) -> None:
        """Raise if the server refuses a sample, or says that its vocabulary has another size.

        vLLM names the size when it refuses a bias of a token that is not in it.
        """
        end, ours = self.endpoint, self.vocabulary
        refusal = self._refusal_of(sample, "logit_bias", logit_bias={NO_TOKEN: 0.0})
        named = re.search(r"Vocabulary size: (\d+)", refusal)
        if named and int(named[1]) != ours:
            raise ModelError(
                f"{end.model!r} at {end.url} predicts {int(named[1]):,} token ids and the model "
                f"that it would teach {ours:,}, so their distributions cannot be compared. Use a "
                "teacher with the same vocabulary (vocab_size in config.json)."
            )

    def _lack(self, sample: ScoringRequest) -> str:
        """Return why the server gives no log-probs at chosen ids; empty if it does.

        vLLM counts the places only if it can score chosen ids.
        """
        refusal = self._refusal_of(sample, "prompt_logprob_")
        if not refusal:
            return "does not count the places that are asked for"
        return "" if "scored rows" in refusal else refusal.rstrip(".")

    def _refusal_of(self, sample: ScoringRequest, wrong: str, **more: object) -> str:
        """Return how the server refuses the field `wrong` of a sample; empty if it does not.

        vLLM refuses the sample in any case, and its model computes nothing. Raise if it is refused
        for anything else: vLLM looks at the picture and at k before these fields.
        """
        end = self.endpoint
        try:
            body = sample.body(end.model, uuid4().hex, **more)
            exchange(self._http, end, f"{self.root}{SCORING}", body)
        except RequestFailure as failure:
            words = str(failure)
            if failure.status not in (400, 422):
                raise AccessError(
                    f"The teacher's server {end.url} {words} (asked for {SCORING}). "
                    "Check that it is up, and that it reads pictures."
                ) from None
            if wrong in words:
                return words
            advice = _advice(words, sample.k)
            raise RefusedError(f"{end.url} {words.rstrip('.')}. {advice}") from None
        return ""

    def _version(self) -> tuple[str, tuple[int, int] | None]:
        """Return the version of the server, as it says and as numbers.

        A server that was built without tags says `dev` or `0.1.devN`. Such a version has no
        numbers, and its replies show what it can do.
        """
        version = str(self._get("/version").get("version"))
        found = re.match(r"(\d+)\.(\d+)(?!\d|\.dev)", version)
        return version, (int(found[1]), int(found[2])) if found else None

    def _check_scoring(self) -> None:
        """Raise unless the endpoint that scores is there."""
        try:
            self._ask_nothing()
        except RequestFailure as failure:
            raise AccessError(
                f"The teacher's server {self.endpoint.url} {failure} (asked for {SCORING}), which "
                "scores given token ids. Serve the model with --enable-scale-out; versions of vLLM "
                "that do not know this option need none."
            ) from None

    def _ask_nothing(self) -> None:
        """Raise unless the endpoint that scores is there: a request without tokens is invalid."""
        url, seconds = f"{self.root}{SCORING}", min(EMPTY_SECONDS, self.endpoint.timeout_seconds)
        try:
            exchange(self._http, self.endpoint, url, b"{}", timeout_seconds=seconds)
        except RequestFailure as failure:
            if failure.status not in (400, 422):
                raise

    def _get(self, path: str, content: dict[str, Any] | None = None) -> dict[str, Any]:
        body = None if content is None else json.dumps(content).encode("ascii")
        try:
            found = json.loads(exchange(self._http, self.endpoint, f"{self.root}{path}", body))
        except RequestFailure as failure:
            raise AccessError(
                f"The teacher's server {self.endpoint.url} {failure} (asked for {path}). Check "
                "that it is a vLLM server and up, its address (teacher.server) and the key."
            ) from None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise AccessError(
                f"{self.root}{path} sent no JSON object. Set teacher.server to the address of a "
                "vLLM server."
            )
        return found

    def check_failures(self) -> None:
        """Raise if a round has failed since the last answer."""
        if self._backoff.failed_rounds:
            raise self._gone()

    def _check_sending(self) -> None:
        self._check_stopping()
        rounds = self._backoff.failed_rounds
        if rounds >= self.endpoint.tries or self._backoff.seconds_away >= AWAY_SECONDS:
            raise self._gone()

    def _hold(self, turn: Turn, failure: RequestFailure) -> None:
        """Let all requests wait after a failure that is temporary; raise after too many."""
        if not failure.is_temporary:
            return
        self._last = str(failure)
        seconds = partial(self._seconds_after, failure)
        self._backoff.failed(
            turn, seconds, at_least=failure.retry_after, is_too_many=failure.status == 429
        )
        self._check_sending()

    def _gone(self) -> ServerError:
        return ServerError(
            f"{self.endpoint.url} failed {counted(self._backoff.failed_rounds, 'time')} in a row; "
            f"the last time it {self._last}. No more requests are sent. Answers so far are stored: "
            "check the server, and run the same command again. Rows whose requests failed are then "
            "asked again as far as teacher.retries allows, which may be raised."
        )


def probe_text(
    decode: Callable[[list[int]], str], size: int, added: Iterable[str], pieces: int = 4000
) -> str:
    """Return a text whose tokens are spread over a vocabulary of some size.

    All `added` tokens are in it, such as `<|im_end|>` and `<think>`: `decode` leaves out special
    ones, and few of the others are among the pieces.
    """
    words = (decode([number]) for number in range(0, size, max(1, size // pieces)))
    return TEXT + " ".join([*(word for word in words if word and "\ufffd" not in word), *added])


def _advice(failure: str, k: int) -> str:
    if "max allowed" in failure:
        return f"Serve the model with --max-logprobs {k}, or lower distill.k."
    if "multimodal" in failure.lower():
        return "The teacher is shown a picture with each row: serve a vision-language model."
    if "image" in failure.lower():
        return "Serve a model that reads pictures, and allow one for each request."
    return "Check the model that is served, and its options."


def _parse(raw: bytes, asked: ScoringRequest, request_id: str, vocabulary: int, url: str) -> Answer:
    """Return an answer that is certain to be about the tokens that were asked for."""
    try:
        reply = json.loads(raw)
    except (ValueError, RecursionError):
        reply = None
    if not isinstance(reply, dict):
        raise RequestFailure("sent something that is no JSON object")
    # A reply to another request, as on a connection that carries one too many.
    if not str(reply.get("request_id", "")).endswith(request_id):
        raise RequestFailure("answered another request")
    places = reply.get("prompt_logprobs")
    if not isinstance(places, list):
        raise AnswerError(
            f"{url} answered without log-probs (prompt_logprobs). Use a vLLM server of version "
            f"{OLDEST[0]}.{OLDEST[1]} or newer."
        )
    if len(places) != asked.tokens:
        raise AnswerError(
            f"{url} read {len(places):,} tokens where a prompt and its response have "
            f"{asked.tokens:,}. It cuts pictures into other tokens: serve the model with the same "
            "picture size (--mm-processor-kwargs), or set model.min_pixels and model.max_pixels "
            "to the server's."
        )
    ids: list[list[int]] = []
    logprobs: list[list[float]] = []
    sampled: list[float] = []
    likely = [_logprobs(place, vocabulary, url) for place in places[-len(asked.response) :]]
    for token, known in zip(asked.response, likely, strict=True):
        if token not in known:
            raise AnswerError(
                f"{url} answered for other tokens than those asked for: the log-prob of token "
                f"{token} is missing. Check that nothing between here and the server changes "
                "requests."
            )
        top = sorted(known, key=lambda each: (-known[each], each))[: asked.k]
        if len(top) < asked.k:
            raise AnswerError(
                f"{url} gave {len(top)} log-probs for a token, where {asked.k} are needed. Serve "
                f"the model with --max-logprobs {asked.k}, or lower distill.k."
            )
        ids.append(top)
        logprobs.append([known[each] for each in top])
        sampled.append(known[token])
    chosen = None
    if asked.chosen is not None:
        chosen = _chosen(reply.get("prompt_token_id_logprobs"), asked.chosen, likely, url)
    return Answer(ids=ids, logprobs=logprobs, sampled=sampled, chosen=chosen)


def _chosen(
    sent: Any, asked: Ids, likely: Sequence[Mapping[int, float]], url: str
) -> list[list[float]]:
    """Return the log-probs at chosen ids, which are those of the likeliest where both are known."""
    try:
        file = io.BytesIO(base64.b64decode(sent, validate=True))
        # Not `numpy.load`, which reads archives too.
        found = numpy.lib.format.read_array(file, allow_pickle=False).astype(numpy.float64)
    except (TypeError, ValueError, EOFError):
        raise AnswerError(
            f"{url} sent no log-probs at the ids that were chosen (prompt_token_id_logprobs), or "
            "none that can be read. Check the server, or set teacher.support=teacher."
        ) from None
    if found.shape != asked.shape:
        raise AnswerError(
            f"{url} sent {found.shape} log-probs at chosen ids, where {asked.shape[0]} places with "
            f"{asked.shape[1]} each were asked for. Set teacher.support=teacher."
        )
    apart: list[float] = []
    values: list[list[float]] = found.tolist()
    for ids, row, known in zip(asked.tolist(), values, likely, strict=True):
        _check_logprobs(row, url)
        apart += [
            abs(known[each] - value) for each, value in zip(ids, row, strict=True) if each in known
        ]
    if apart and sum(apart) / len(apart) > MOST_APART:
        raise AnswerError(
            f"{url} gave two log-probs for one token, {sum(apart) / len(apart):.2g} apart on "
            f"average over {len(apart)} tokens. Its log-probs at chosen ids are of other places: "
            "set teacher.support=teacher."
        )
    return values


def _logprobs(place: Any, vocabulary: int, url: str) -> dict[int, float]:
    """Return token id -> log-prob at one place of a reply."""
    try:
        known = {int(token): float(each["logprob"]) for token, each in place.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise AnswerError(f"{url} sent log-probs that cannot be read. Check the server.") from None
    if other := [token for token in known if not 0 <= token < vocabulary]:
        raise ModelError(
            f"{url} gave a log-prob of token {other[0]}, but the model that it teaches has only "
            f"{vocabulary:,} token ids. Use a teacher with the same vocabulary."
        )
    _check_logprobs(known.values(), url)
    return known


def _check_logprobs(known: Collection[float], url: str) -> None:
    """Raise unless these can be log-probs of different tokens at one place."""
    if not all(math.isfinite(each) for each in known):
        raise AnswerError(f"{url} gave a log-prob that is not finite. Check the server.")
    if sum(math.exp(min(each, 1.0)) for each in known) > 1.01:
        raise AnswerError(
            f"{url} gave probabilities that sum to more than 1. Serve the model with "
            "--logprobs-mode raw_logprobs."
        )
