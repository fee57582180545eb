"""Normalisation of outputs: Unicode forms, blocks of thinking, Markdown and LaTeX."""

from __future__ import annotations

import re
import unicodedata

# Every pattern of this package has bounded repetitions, and runs are cut short here, so that the
# time of reading grows with the length of an output and not with its square.
_LONGEST = 100_000  # characters read of an output, at its two ends
_STACKED_MARKS = re.compile(r"([\u0300-\u036f]{4})[\u0300-\u036f]+")
_INVISIBLE = re.compile(
    "[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufe00-\ufe0f\ufeff]"
)
_SPACES = re.compile(r"[^\S\n]+")
_LINE_ENDS = re.compile(r" ?\n[ \n]*")
_REPEATED = re.compile(r"([^\w\s])\1{3,}")
_THOUGHT = re.compile(r"<(/?)(?:think|thinking|thought|reasoning|analysis|scratchpad)>", re.I)
_BOX_TOKEN = re.compile(r"<\|(begin|end)_of_box\|>")
_TURN_END = re.compile(
    r"<\|(?:im_end|endoftext|eot_id|end_of_text|end)\|>|</s>|<(?:eos|end_of_turn)>"
)
_SPECIAL = re.compile(r"<\|[\w ]{1,40}\|>|</?s>|<(?:bos|eos|pad|end_of_turn)>")
_LETTERS = str.maketrans({
    "\u2018": "'", "\u2019": "'", "\u201a": "'", "\u00b4": "'", "\u02bc": "'", "\u2032": "'",
    "\u201c": '"', "\u201d": '"', "\u201e": '"', "\u00ab": '"', "\u00bb": '"', "\u300c": '"',
    "\u300d": '"', "\u2044": "/", "\u2212": "-", "\u2010": "-", "\u2011": "-", "\u3002": ".",
    "\u3010": "[", "\u3011": "]", "\u3001": ",", "\u0964": ".",
    "選": "选", "項": "项", "為": "为", "確": "确", "對": "对", "錯": "错", "沒": "没", "無": "无",
    "圖": "图", "個": "个", "這": "这", "應": "应", "該": "该", "認": "认", "擇": "择", "見": "见",
})  # fmt: skip
_VULGAR_FRACTION = re.compile(r"(?<=\d)(?=[\u00bc-\u00be\u2150-\u215e])")
_THOUGHT_SIGN = re.compile(r"\u25c1(/?think)\u25b7")


def clean(output: str) -> str | None:
    """Normalise an output and remove its thinking; None if the thinking never ended."""
    text = output if output.isascii() else _composed(output)
    if "<" in text:
        spoken = _spoken(text)
        if spoken is None:
            return None
        said = _TURN_END.split(spoken, maxsplit=1)[0]  # What follows is an invented next turn.
        text = said if _SPECIAL.sub("", said).strip() else spoken
        text = _BOX_TOKEN.sub(lambda match: f"<{'/' * (match[1] == 'end')}answer>", text)
        text = _SPECIAL.sub(" ", text)
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]}\n{text[-_LONGEST // 2 :]}"
    text = _LINE_ENDS.sub("\n", _SPACES.sub(" ", text))
    return _REPEATED.sub(r"\1\1\1", text).strip()


def _composed(text: str) -> str:
    # Without a space between them, "2\u00bd" would become 21/2.
    text = _VULGAR_FRACTION.sub(" ", _THOUGHT_SIGN.sub(r"<\1>", _STACKED_MARKS.sub(r"\1", text)))
    text = unicodedata.normalize("NFKC", text)
    return _INVISIBLE.sub("", text.translate(_LETTERS))


def _spoken(text: str) -> str | None:
    """Remove thinking; a template may have opened the first block, so a lone end tag closes it."""
    kept: list[str] = []
    depth = start = 0
    for tag in _THOUGHT.finditer(text):
        if not tag[1]:
            if depth == 0:
                kept.append(text[start : tag.start()])
            depth += 1
        elif depth == 0:
            kept.clear()
        else:
            depth -= 1
        start = tag.end()
    return None if depth else " ".join([*kept, text[start:]])


_FRACTION = re.compile(r"\\[dt]?frac\{([^{}]{1,20})\}\{([^{}]{1,20})\}")
_COMMAND = re.compile(
    r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|mbox|operatorname|bf|rm|emph)"
    r" ?\{([^{}]{0,200})\}"
)
_LATEX_MARK = re.compile(r"\\[()\[\],;! ]|\\(?:left|right|quad|displaystyle)\b|\${1,2}(?!\d)")
_LATEX_SYMBOL = re.compile(r"\\([%$#&_{}])")
_FORMULA = re.compile(r"\$(?=\S)([^$\n]{0,98}[^$\n\s])\$(?!\d)")
_ROOT = re.compile(r"(?:(?<=\d) )?(?:\u221a ?(?:\{ ?(\w{1,10}) ?\})?|(π))")
_LATEX_SIGN = re.compile(r"\\(pi|pm|sqrt|times|cdot)(?![a-z])")
_SIGNS = {"pi": "π", "pm": "±", "sqrt": "√", "times": "\u00d7", "cdot": "·"}
_DEGREE = re.compile(r"\^ ?\{?\\circ\}?|\\degree")
_TAG = re.compile(
    r"</?(?:b|i|u|p|em|strong|br|code|span|div|answer|h[1-6]|li|ul|ol)\b[^<>]{0,60}>", re.I
)
_HEAD = re.compile(r"^(?:#{1,6} ?|> (?!\d)|[-*\u2022\u25cf\u25aa+] )+", re.M)
_LONE_LETTER = re.compile(
    r"(?<![\w*])(?:(\*{1,3}|_{1,3}|`)[(\[]?([A-Za-z])[)\]]?[.:,]?\1"
    r"|([\"'])\(?([A-Z])\)?[.,]?\3)(?!\w)"
)
_EMPHASIS = re.compile(r"\*{1,3}|`|(?<!\w)_{1,3}(?=\w)|(?<=\w)_{1,3}(?!\w)|~~")
_ROW = re.compile(r"^ ?\| ?([^\n]{1,500}?) ?\| ?$", re.M)
_CELL = re.compile(r" ?\| ?")
_RULE = re.compile(r"^[-=_*|: ]{3,}$", re.M)


def plain(text: str) -> str:
    """Remove markup from a cleaned text; a letter that was marked up gets brackets instead."""
    if "\\" in text or "$" in text:
        for pattern, left in (
            (_FORMULA, r"\1"),
            (_LATEX_SYMBOL, r"\1"),
            (_FRACTION, r"\1/\2"),
            (_DEGREE, "°"),
            (_COMMAND, r"\1"),
            (_COMMAND, r"\1"),
            (_LATEX_MARK, " "),
        ):
            text = pattern.sub(left, text)
        text = _LATEX_SIGN.sub(lambda sign: _SIGNS[sign[1]], text)
    if "\u221a" in text or "π" in text:
        text = _ROOT.sub(lambda sign: sign[2] or f"\u221a{sign[1] or ''}", text)
    if "<" in text:
        text = _TAG.sub(" ", text)
    text = _HEAD.sub("", _RULE.sub("", text))
    text = _LONE_LETTER.sub(lambda match: f"({match[2] or match[4]})", text)
    text = _EMPHASIS.sub("", text)
    if "|" in text:
        text = _ROW.sub(lambda row: _CELL.sub(": ", row[1]), text).replace("|", " ")
    return _LINE_ENDS.sub("\n", _SPACES.sub(" ", text)).strip()


def lowered(text: str) -> str:
    """Return lower case of the same length, which `str.lower` does not guarantee."""
    if text.isascii():
        return text.lower()
    return "".join(low if len(low := char.lower()) == 1 else char for char in text)
