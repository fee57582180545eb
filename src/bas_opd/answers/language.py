"""Words that change a statement: negation, doubt, correction, refusal, a missing end.

Patterns are for text in lower case: to ignore case costs five times as much.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator

from bas_opd.answers.cleaning import lowered

_SENTENCE_END = re.compile(
    r"(?:(?<!\b[a-z])(?<!\be\.g)(?<!\bi\.e)(?!(?<=\b[Nn]o)\. \d)[.!?]{1,3}[\"')\]]{0,2})(?=\s|$)"
    r"|[?!.](?=[^\x00-\x7f])|\n"
)
TURNING_BUT = (
    r"(?<!thing )(?<!all )(?<!any option )(?<!any choice )(?<!every option )(?<!every choice )"
    r"(?<!all options )(?<!all choices )\bbut\b"
)
"""Not that of "all but B"."""
CLAUSE_END = re.compile(
    r"[,;:()]|[.!?](?=\s|$)|\n|\s[-\u2013\u2014]{1,2}\s|\u2014"
    rf"|{TURNING_BUT}|\b(?:however|while|whereas|although|though|because|since|so"
    r"|therefore|thus|hence|which)\b",
)
NEGATION = re.compile(
    r"\b(?:not|never|neither|nor|cannot|without|than|instead of|rather than|except|unlike|no"
    r"|opposed to|opposite of|(?<!at )least|worst|(?:second|next)[- ]best|incorrect|wrong|false"
    r"|untrue|ruled? out|ruling out|exclud\w{1,3}|eliminat(?:e[ds]?|ing)|unlikely"
    r"|compared (?:to|with)|non|none|nothing|nobody|doubt(?:ful)?|mistake to|hardly|scarcely"
    r"|(?:any|every)(?:thing| option| choice| one) but|all (?:options |choices )?but)\b|n't\b"
    r"|[\u4e0d\u975e\u6ca1\u6c92]|\b(?:\u043d\u0435|nicht|kein|keine|ne|pas)\b",
)
CORRECTION = re.compile(
    r"[.,;!?\n\u2014-] ?no,(?= (?:[(\[]?[a-z][)\]]?|\d{1,9})(?:[.,;!\n]|$))"
    r"|\b(?:initially|at first)\b[^.\n]{1,120}?\b(?:but|however)\b"
    r"|(?:^|[.,;!?\n\u2014-] ?|\b(?:no|but|oh|hmm+|and) )"
    r"(?:wait|hold on|actually|correction|scratch that|on second thoughts?|on reflection|oops"
    r"|my mistake"
    r"|let me (?:re-?\w{3,10}|correct|fix|look again|think again|check again|double[- ]check)"
    r"|i mean|make that|or rather"
    r"|i was wrong|that(?:'s| is) (?:wrong|not right|incorrect|not correct)|never ?mind|sorry"
    r"|(?:up)?on (?:closer|further|careful) (?:look|inspection|examination)|looking (?:again"
    r"|closer)"
    r"|re-?(?:checking|examining|considering|evaluating))\b",
)
NO_OPTION = re.compile(
    r"\b(?:none|neither)(?: one)?(?: of)?(?: the| these| those)?(?: given| listed| provided"
    r"| available| other)? (?:above|options?|choices?|answers?|two)\b|\bnone of (?:these|those)\b"
    r"(?=\W{0,3}$)|\bno (?:(?:correct|valid|matching|suitable|right|such) )?(?:option|choice)\b"
    r"|\bno (?:correct|valid|matching|suitable) answer\b|^neither\W{0,2}$"
)
"""Words that reject every option, which is no "no" either."""
_KNOWLEDGE = (
    r"(?:info|information|context|details?|evidence|data|figures|numbers|statistics|records?"
    r"|knowledge|answer|opinion)"
)
_ABLE = (
    r"(?:determined?|calculated?|computed?|solved?|find the (?:value|answer|number|length|area)"
    r"|tell|told|say|said|answer(?:ed)?|identif(?:y|ied)"
    r"|provided?|help|assist|known?"
    r"|confirm(?:ed)?|make out|read|discern(?:ed)?|verif(?:y|ied)|infer(?:red)?|ascertain(?:ed)?"
    r"|decide|choose|conclude|judge|analy[sz]e|distinguish|pick|select|give|offer|recogni[sz]e"
    r"|comment)"
)
# All alternatives but the last begin with a word, so that most places of a text are left at once.
_REFUSAL = re.compile(
    r"\b(?:(?:can ?not|can't|could not|couldn't|won't|unable to|not able to|impossible to"
    r"|not possible to|hard to|difficult to|no way to|not going to)"
    rf" (?:be )?(?:\w{{3,12}}ly )?{_ABLE}\b"
    r"|(?:can ?not|can't|unable to|not able to|do not|don't)(?: actually| directly)? "
    r"(?:see|view|access|open|process|have|load)(?: access to)?(?: the| this| that| any| an| your)?"
    r" (?:image|picture|photo|attach\w{1,5})"
    r"|(?:do not|don't|didn't) (?:actually )?(?:know|have (?:enough|sufficient)|understand)\b"
    r"|i(?: \w{3,12}ly)? (?:do not|don't|did not|didn't) (?:\w{3,12}ly )?have(?! to)\b"
    r"|i have no(?! doubt| trouble| difficulty| problem| hesitation)\b"
    rf"|we (?:have no|do not have|don't have)(?: the| any| an?)? {_KNOWLEDGE}\b"
    rf"|(?:(?:not|'t) enough|insufficient|lack of|no(?! evidence)(?: further| additional| more"
    rf"| such)?|without more|needs? more|not given any) {_KNOWLEDGE}\b"
    r"|(?:not|'t) (?:be )?(?:\w{3,12}ly )?(?:sure|certain|clear|confident|specified|possible to"
    r"|stated|mentioned|known|disclosed)\b"
    r"|(?:image|picture|photo)(?: does not|doesn't) (?:say|tell|state|mention|specify)\b"
    r"|(?:not|'t) (?:\w{3,12}ly )?(?:provide|give|contain|offer|include|show|indicate|reveal)"
    r"(?: (?:enough|sufficient|adequate|any)(?: \w{3,12})? (?:information|detail|context|evidence)"
    r"| (?:whether|if|which))\b"
    r"|(?:image|picture|photo)(?: is|'s| was|s are)(?: not |n't | un)(?:available|provided"
    r"|attached|visible to me|loaded|accessible)\b|please (?:provide|upload|share|attach)\b"
    r"|neither confirm nor deny\b"
    r"|no (?:(?:clear|definite|definitive|certain|final|direct) )?(?:idea|answer|clue|comment"
    r"|response|conclusion)\b"
    r"|(?:unsure|unclear|uncertain|undetermined|illegible|unreadable|as an ai|apologi[sz]e|n/a)\b"
    r"|i(?:'m| am) (?:so |very )?sorry\b|(?<!.)(?:sorry|unknown|not applicable)\b"
    r"|(?:is|are|remains?) unknown\b|there is no (?:image|picture|photo)(?=\W{0,2}$)"
    r"|(?:no[ -]?one|nobody|who|god)(?: \w{3,12}ly)? (?:knows|(?:can|could)(?: \w{3,12}ly)? "
    r"(?:say|tell|know))\b|no (?:way of )?(?:telling|knowing|saying)\b|any(?:one|body)'s guess\b"
    r"|no (?:image|picture) (?:was|is|has been|provided|attached|given|found|available)\b"
    r"|too (?:blurry|small|dark|far away|unclear|low) to\b"
    r"|no (?:puedo|(?:lo )?s\u00e9\b|se (?:puede|sabe)|es posible|estoy segur)"
    r"|je ne (?:peux|sais|suis pas s\u00fbr)|impossible (?:de|\u00e0) |je suis d\u00e9sol"
    r"|ich (?:kann nicht|wei\u00df (?:es )?nicht)|kann (?:ich|man) (?:das |es )?nicht"
    r"|nicht (?:sicher|m\u00f6glich|bestimmen|sagen)|keine ahnung"
    r"|n\u00e3o (?:sei|posso|consigo|\u00e9 poss\u00edvel|d\u00e1 para|tenho certeza)"
    r"|non (?:(?:lo )?so|posso|sono sicur|\u00e8 possibile|si pu\u00f2)\b"
    r"|nie (?:wiem|mog\u0119|mo\u017cna|jestem)|(?:weet|kan) (?:ik )?(?:het |dat )?niet"
    r"|tidak (?:tahu|dapat|bisa|yakin|jelas)|bilmiyorum|emin de\u011filim"
    r"|kh\u00f4ng (?:bi\u1ebft|th\u1ec3|r\u00f5|ch\u1eafc)"
    r"|не (?:могу|знаю|уверен|ясно)|нельзя|невозможно|извините"
    r"|δεν (?:ξέρω|μπορώ|γνωρίζω))"
    r"|无法|不(?:能(?:确定|判断|回答)|知道|确定|清楚|好说)|不是(?:很|太|十分)?(?:确定|清楚|肯定)"
    r"|没有(?:足够|答案|办法|图片|图像|信息)|没法|看不清|难(?:以|说)|抱歉|对不起"
    r"|[分わ]か(?:ら(?:ない|ず)|りません)|(?:判断|判別|確認|回答|特定)(?:が|は)?でき(?:ない|ません)|不明"
    r"|申し訳|알 수 없|모르|(?:확인|판단|답변)할 수 없|죄송"
    r"|لا (?:أعرف|أستطيع|يمكن|أعلم|أدري)|غير (?:واضح|معروف|متأكد)|عذرا|آسف"
    r"|पता नहीं|नहीं (?:पता|कह|बता)|ไม่(?:ทราบ|รู้|แน่ใจ|สามารถ|แน่นอน)|לא (?:יודע|ניתן|ברור|בטוח)",
)
_DANGLING_WORD = re.compile(
    r"\b(?:an?|the|is|are|was|were|be|to|of|in|on|at|and|or|with|for|by|from|that|which|as"
    r"|(?:that|because|since|as|and|if|where|which|so|,) it|has|have|because|than|into|its|their"
    r"|this|these|appears|looks|seems|says|reads|includes|contains|very|i|we|would|should"
    r"|option|there|can|will|if|not quite|so|based)$"
)
_DANGLING_MARK = re.compile(r"(?:[,:;(\[{=+/\u3001]|\s-)$")
_WHOLE_ENDS = frozenset(".!?)]}\"'%\u2026")


def sentences(text: str) -> Iterator[tuple[int, int]]:
    """Return the bounds of the sentences of a text, end marks included, line by line."""
    start = 0
    for end in _SENTENCE_END.finditer(text):
        if text[start : end.end()].strip():
            yield start, end.end()
        start = end.end()
    if text[start:].strip():
        yield start, len(text)


def without_questions(text: str) -> str:
    """Remove questions, unless there is nothing else."""
    if "?" not in text:
        return text
    kept = [
        text[start:end]
        for start, end in sentences(text)
        if "?" not in text[max(start, end - 4) : end]
    ]
    return " ".join(kept).strip() or text


def last_correction(text: str) -> re.Match[str] | None:
    """Find the last words with which a text retracts what it said."""
    last = deque(CORRECTION.finditer(lowered(text)), maxlen=1)
    return last[0] if last else None


def refuses(text: str) -> bool:
    """Return whether a text gives up on answering."""
    return _REFUSAL.search(lowered(text)) is not None


def after_refusal(text: str) -> str:
    """Return what a text says in spite of its doubts ("not sure, but red"); empty if nothing."""
    low = lowered(text)
    last = deque(_REFUSAL.finditer(low), maxlen=1)
    if not last:
        return text
    turn = _TURN.search(low, last[0].end())
    if turn is None and _CONCEDED.search(low, 0, last[0].start()):
        turn = _COMMITS.match(low, last[0].end())
    return text[turn.end() :].strip() if turn else ""


_CONCEDED = re.compile(r"\b(?:although|though|while|even if)\b[^.,;!?\n]{0,120}$")
"""What makes doubts an aside: "although it is hard to tell, it is red"."""
_COMMITS = re.compile(
    r"[^,.;!?\n]{0,80},(?= (?:"
    r"(?:i(?:'m| am) (?:\w{2,12} )?(?:confident|sure|certain) (?:that )?|i(?:'d| would) say "
    r"|i think )?"
    r"(?:it's|it is|that's|they're|they are)(?: most)?(?: (?:likely|probably|clearly|definitely))?"
    r"(?: in| on)?(?: an?| the)?(?! (?:not|maybe|perhaps|either|often|\w{2,12}ly)\b)"
    r"(?: [\w-]{1,20}){1,2}\W{0,3}$"
    r"|(?:the answer is )?(?:option )?[(\[]?[a-z][)\]]?\W{0,3}$"
    r"|(?:yes|no)\b(?=[,.!]|$)(?![^\n]{0,200}\b(?:might|could|may|possibly|perhaps|maybe)\b)))"
)
"""What ends such an aside: a short answer, and nothing after it."""
_TURN = re.compile(r"\b(?:but|however|though|still|nevertheless|that said|if i had to)\b")


def is_cut(text: str, was_cut: bool | None = None) -> bool:
    """Return whether a text stops before its end, as its generator says or as its end shows.

    A text that ended by itself may lack a full stop, but ends with no "the".
    """
    if was_cut or not text or text[-1] in _WHOLE_ENDS:
        return bool(was_cut)
    end = text[-40:]
    if _DANGLING_WORD.search(end):
        return True
    return was_cut is None and _DANGLING_MARK.search(end) is not None


def may_be_cut(text: str, was_cut: bool | None) -> bool:
    """Return whether a long text without a full stop may have been cut, if nobody knows."""
    if was_cut is not None or not text or text[-1] in _WHOLE_ENDS:
        return False
    tail = text[text.rfind("\n") + 1 :]
    return len(tail.split()) > 3 and len(text.split()) > 20
