"""Words that announce, confirm, deny or suppose a choice; for text in lower case."""

from __future__ import annotations

import re

from bas_opd.answers.language import TURNING_BUT

_BE = (
    r"(?:(?:is|are|was|(?:would|should|must|will|might|could|may|can|(?:has|have|ought|appears|seems)"
    r" to) be)\b|[:=→\n]|[\u2013\u2014-](?!\w))"
)
ANSWER = re.compile(
    r"\b(?:(?<!to )answers?|ans|(?:correct|right|(?<!second[ -])(?<!next[ -])best"
    r"|final|chosen|selected|matching|appropriate|accurate|closest|suitable|valid)"
    r"(?: \w{3,12})? (?:option|choice|response|one|letter|selection"
    r"|statement"
    r"|match|description)|my (?:choice|pick|guess|selection)"
    r"|(?<!each )(?<!every )(?<!first )(?:option|choice|conclusion|solution|verdict|response)"
    r"(?= ?[:=]| is\b))"
    r"(?: (?=[(\[]|[a-z](?:[^\w' ]|$))"
    rf"|(?: [\w']{{1,15}}){{0,7}}? ?{_BE})"
    r"|\b(?:i|we|you(?! might| may| could| would))"
    r"(?:'d|'ll|'m| would| will| can| must| should| have to| am)?"
    r"(?: \w{2,12}){0,2}? "
    r"(?:choos(?:e|ing)|pick(?:ing)?|select(?:ing)?|go(?:ing)? (?:with|for)|opt(?:ing)? for"
    r"|vote for|settle on|lean(?:ing)? (?:towards?|to)|say|guess|answer|conclude|believe|think)\b"
    r"|(?:^|[.,;:!?\n] ?)(?:so |thus |please )?(?:choose|pick|select|choosing"
    r"|picking|selecting|going with|go with)\b(?!')"
    r"|(?:正确)?(?:答案?|选项)就?(?:应?[是为]|:)"
    r"|(?<![挑可])选择?(?:选项)?:?(?=[ (]?[a-z])|正解は|答えは|답은|정답 ?:|答え ?:|उत्तर:?|जवाब:?"
    r"|ค\u0e4d\u0e32ตอบ(?:คือ)?:?"
    r"|(?:الإجابة|الجواب)(?: الصحيحة?)?(?: (?:هي|هو)| ?:)|(?:đáp án|jawaban|cevap)(?: (?:là|adalah)"
    r"| ?:)"
    r"|ответ(?:ом)?\b"
    r"|(?:respuesta|resposta|risposta|réponse|antwort|opción|opção"
    r"|opzione)(?: \w{2,9})?(?: (?:es|é|è|est|ist)\b| ?:)",
)
HEADING = re.compile(
    r"\b(?:is|be|was)(?: \w{3,10}){0,2}:\n"
    r"(?=[(\[][a-z][)\]]|[a-z][.):])"
)
"""A line that announces the label at the beginning of the next."""
CONCLUSION = re.compile(
    r"\b(?:so|therefore|thus|hence|consequently|overall|accordingly|in (?:conclusion|summary|short)"
    r"|to (?:conclude|summari[sz]e)|finally|leaving|leaves)"
    r"|所以|因此|故|应[为是]|是(?=[ (]?[a-z])|=>|->|→",
)
POINTER = re.compile(
    r"\b(?:it's|is|was|corresponds? (?:to|with)|match(?:es|ing)?"
    rf"|points? to|{TURNING_BUT}|probably)\b"
    r"|:(?= [(\[]?[a-z][)\]]?\W{0,2}$)",
)
GAP = re.compile(
    r"(?:[ \n:,>\"*]|-(?!\d)|\b(?:option|choice|letter|answer|number|one|most|likely|clearly"
    r"|definitely|certainly|indeed|simply|just|obviously|surely|actually|still|rather|also|only|then"
    r"|correct|final|labell?ed|(?:it|that)(?:'s)?|be|to|must|should|would|has|us|with|the"
    r"|as follows|no(?=,))\b){0,14}",
)
ASKS = re.compile(
    r"(?:^|[.!?\n] ?)(?:so,? |or |and )?"
    r"(?:is|are|was|were|could|would|should|can|does|do|might|may) [^.!?\n]{1,80}$"
)
SENTENCE_MARK = re.compile(r"[.!?\n]")
DENIED = re.compile(r"n't\b|\b(?:not|never|cannot|unable)\b")
UNREAL = re.compile(
    r"\b(?:if|whether|suppose|supposing|assuming(?! the question)|unless|had|initially|at first"
    r"|first thought|seemed|tempt(?:ing|ed)|(?:you|one) (?:might|may|could|often)"
    r"|(?:some|many|people) (?:might|may|could|would|often))\b"
)
HEDGE = re.compile(r"\b(?:might|could|may|possibly|perhaps|maybe|either)\b|可能|也许|或许|大概")
_SURELY = r"(?!part|near|hard|bare|scarce)\w{3,12}ly"
RIGHT = re.compile(
    r"[.)\]]?[\"']?(?: ?[:-])?(?: (?:is|seems|appears|looks|would be|must be|should be"
    rf"|has to be)(?: (?:to be|{_SURELY}|indeed|also|perhaps|maybe))?)?"
    rf" (?:(?:the|my|our) )?(?:{_SURELY} )?(?:(?:most|best|only|final|single) )?(?:correct"
    r"|right|answer|best|better|true|accurate|appropriate|likely|choice|option|one|match|suitable"
    r"|fitting)\b|: yes\b| (?:is|does)(?=[.!]?(?:$|\n))|(?:选项)?是?(?:正确|对的)"
    r"|[.)\]]? (?:fits|matches|describes|works|suits|answers)(?: \w{2,12}){0,4}? (?:best"
    r"|correctly|accurately|perfectly)\b"
    r"|[.)\]]? (?:best|correctly|accurately) (?:fits|matches|describes|answers|represents)"
    r"|[.)\]]? ?[✅✓✔]|[.)\]]? it is\b"
)
FIRM = re.compile(r"\b(?:correct|right|answer|best|choice|option)\b")
"""What a text that was cut must say of an option: a mere "yes" may be one of several."""
RIGHT_AFTER_TEXT = re.compile(
    r" ?(?:[-\u2013\u2014:(,] ?)?(?:is )?(?:(?:correct|right|true)\b|[✅✓✔])"
)
_IF = (
    r"(?:if (?:by that )?you (?:mean|are asking)"
    r"|if (?!i\b|we\b|you\b|forced\b|pressed\b|anything\b))"
)
_UNLESS = r"unless\b(?! i(?:'m| am)\b)"
CONDITION = re.compile(
    rf"[ ,(]{{0,2}}(?:but )?(?:only )?(?:{_IF}|when(?! look)|{_UNLESS}|had it\b)"
)
PARTLY = re.compile(r"[^.;:!?\n]{0,40}? but not (?![(\[]?[a-z]\b|option|choice)")
"""What limits an approval: "A is right for the roof but not for the doors"."""
_SUPPOSES = (
    rf"(?:\b(?:{_UNLESS}|assuming\b(?! the question)|suppos(?:e|ing)\b|{_IF})"
    r"|(?:^|[.;!?\n] ?)(?:had|should|were) (?:it|the|this|that|they|you)\b)"
)
CHOOSE_IF = re.compile(
    r"(?<!\bi'd )(?<!\bi would )\b(?:choose|pick|select)\b[^.,;!?\n]{1,60}"
    r" if you (?:see|want|prefer|think|find|notice)\b"
)
"""What leaves the choice to others: "choose A if you see a red car"."""
SUPPOSITION = re.compile(rf"{_SUPPOSES}|{CHOOSE_IF.pattern}")
SUPPOSED = re.compile(
    rf"{_SUPPOSES}[^.;!?\n]{{1,120}}, "
    r"(?:(?!\bbut\b|\bso\b|\bhowever\b)[^.;!?\n]){0,40}$"
)
_LETTER = r"[(\[]?\b[a-z]\b[)\]]?"
RUN = re.compile(
    rf"(?:{_LETTER} (?:and|or) |(?:{_LETTER}, ?){{1,8}}{_LETTER}(?:,? (?:and|or) |, ?))"
    r"(?:option )?[(\[]?$"
)
"""Labels before another in a list: what is said of one holds for all."""
VAGUE = re.compile(
    r"(?:clear|obvious|based|below|above|given|found|supported|simple|shown|provided|straightforward"
    r"|determined|not|evident|in|from|because|therefore|here|there|visible|i)\b",
)
DENIED_LABEL = re.compile(
    r"[)\]]? (?:(?!and\b|but\b)[a-z]{2,6}(?: \w{3,9}ly)?(?: not\b|n't\b)|cannot\b)"
    r"|[)\]]? (?:is|was|must be|seems|looks|appears)(?: \w{3,9}ly)? (?:wrong|incorrect|false)\b"
)
IS = re.compile(r"\b(?:is|are|be|was|were)(?: (?:both|either))? [(\[]?$")
NOT_SOON = re.compile(r"[^.]{0,30}?(?:\b(?:can)?not\b|n't)")
TEXT_END = re.compile(r"\W{0,2}(?:$|\n|[.,;!]| (?:because|since|as)\b)")
SMALL_LETTER = re.compile(r"([a-z])(?=[.)]?(?:\n|$)|[.)] )")
OPINION = re.compile(r"(?:i|we|you)\b")
