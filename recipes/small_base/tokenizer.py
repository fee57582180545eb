"""A byte-level tokenizer of Qwen's own classes, whose merges spell given words."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import AddedToken, PreTrainedTokenizerBase, Qwen2Tokenizer, Qwen3_5Tokenizer

from bas_opd.model.family import Family

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
THINK_TOKENS = ("<think>", "</think>")

CHAT_TEMPLATE = """\
{%- macro render(content) -%}
{%- if content is string -%}{{ content }}{%- else -%}
{%- for item in content -%}
{%- if item.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>
{%- elif item.type == 'text' -%}{{ item.text }}
{%- else -%}{{ raise_exception('Only text and images can be part of a message.') }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + render(message.content) | trim + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if enable_thinking is defined and enable_thinking is false -%}
{{- '<think>\\n\\n</think>\\n\\n' -}}
{%- else -%}
{{- '<think>\\n' -}}
{%- endif -%}
{%- endif -%}
"""


def build_tokenizer(family: Family, words: Sequence[str]) -> PreTrainedTokenizerBase:
    """Return a tokenizer of the family's class with one token for each word."""
    vocab, merges = _byte_pairs(words)
    tokenizer_class = Qwen3_5Tokenizer if family == "qwen3_5" else Qwen2Tokenizer
    tokenizer = tokenizer_class(
        vocab=vocab,
        merges=merges,  # pyright: ignore[reportArgumentType] (pairs are what the class wants)
        unk_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        padding_side="left",
    )
    specials = [AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS]
    thinks = [AddedToken(text, special=False, normalized=False) for text in THINK_TOKENS]
    tokenizer.add_tokens([*specials, *thinks])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _byte_pairs(words: Sequence[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return the byte-level alphabet with the words added, and the merges that build them."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letter = {byte: chr(byte) for byte in printable}
    letter |= {byte: chr(256 + index) for index, byte in enumerate(others)}

    vocab = {letter[byte]: byte for byte in range(256)}
    merges: list[tuple[str, str]] = []
    for word in words:
        spelled = "".join(letter[byte] for byte in word.encode())
        for end in range(2, len(spelled) + 1):
            if spelled[:end] not in vocab:
                vocab[spelled[:end]] = len(vocab)
                merges.append((spelled[: end - 1], spelled[end - 1]))
    return vocab, merges
