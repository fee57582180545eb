"""Words that announce, confirm, deny or suppose a choice; for text in lower case."""

from __future__ import annotations

import re

_BE = (
    r"(?:is|are|was|would be|should be|must be|will be|has to be|have to be|ought to be|might be"
    r"|could be|may be|can be|appears to be|seems to be|isn't|wasn't|:|=|-{1,2}>?|=>|→|\u2013"
    r"|\u2014|\n)"
)
ANSWER = re.compile(
    r"\b(?:(?<!to )answers?|ans|(?:correct|right|best|final|chosen|selected|matching|appropriate"
    r"|accurate|closest"
    r"|suitable|remaining|valid)(?: \w{3,12})? (?:option|choice|response|one|letter|selection"
    r"|statement"
    r"|match|description)|my (?:choice|pick|guess|selection|final choice)"
    r"|(?<!each )(?<!every )(?<!first )(?:option|choice|conclusion|solution|verdict|response)"
    r"(?= ?[:=]| is\b))"
    rf"(?:(?: (?!is\b|are\b|was\b|isn't\b)[\w']{{1,15}}){{0,7}}? ?{_BE}(?!\w)"
    r"| (?=[(\[]|[a-z](?:[^\w' ]|$)))"
    r"|\b(?:i|we|you)(?:'d|'ll|'m| would| will| can| must| should| have to| am"
    r"| are)?(?: \w{2,12}){0,2}? "
    r"(?:choos(?:e|ing)|pick(?:ing)?|select(?:ing)?|go(?:ing)? (?:with|for)|opt(?:ing)? for"
    r"|vote for|settle on|lean(?:ing)? (?:towards?|to)|say|guess|answer|conclude|believe|think)\b"
    r"|(?:^|[.,;:!?\n] ?)(?:so |thus |therefore,? |please )?(?:choose|pick|select|choosing"
    r"|picking|selecting|going with|go with)\b(?!')"
    r"|(?:正确)?(?:答案?|选项)就?(?:应?[是为]|选择?|:)"
    r"|[我应故选]选择?"
    r"|(?<![挑可])选择?(?=[ (]?[a-z])|正解は|答えは|정답은|답은|정답 ?:|答え ?:|उत्तर:?|जवाब:?"
    r"|คำตอบ(?:คือ)?:?"
    r"|(?:الإجابة|الجواب)(?: الصحيحة?)?(?: (?:هي|هو)| ?:)|(?:đáp án|jawaban|cevap)(?: (?:là|adalah)"
    r"| ?:)"
    r"|ответ\w{0,3}(?: ?[:\u2014\u2013-]| [\u0430-\u044f]{2,10})?"
    r"|(?:respuesta|resposta|risposta|réponse|antwort|opción|opção"
    r"|opzione)(?: \w{2,9})?(?: (?:es|é|è|est|ist)\b| ?:)",
)
HEADING = re.compile(
    r"\b(?:is|be|was|select|choose|with)(?: (?:likely|option|choice))?:\n"
    r"(?=[(\[][a-z][)\]]|[a-z][.):])"
)
"""A line that announces the label at the beginning of the next."""
CONCLUSION = re.compile(
    r"\b(?:so|therefore|thus|hence|consequently|overall|accordingly|in (?:conclusion|summary|short)"
    r"|to (?:conclude|summari[sz]e)|finally|leaving|leaves|must be)"
    r"|所以|因此|故|应[为是]|是(?=[ (]?[a-z])|=>|->|→",
)
POINTER = re.compile(
    r"\b(?:it's|is|was|corresponds? to|corresponding to|match(?:es"
    r"|ing)?(?: with| to)?"
    r"|points? to|namely|(?<!thing )(?<!all )but|by|remains|remaining|only|be|probably)\b"
    r"|:(?= [(\[]?[a-z][)\]]?\W{0,2}$)",
)
GAP = re.compile(
    r"(?:[ \n:,>\"*]|-(?!\d)|\b(?:option|choice|letter|answer|most|likely"
    r"|probably|clearly|definitely"
    r"|certainly"
    r"|therefore|thus|then|indeed|simply|just|correct|right|one|labell?ed|number|is|it|it's"
    r"|that|this|that's"
    r"|following|indicated|represented|by|actually|still|best|be|to|must|should|would|only|us|with"
    r"|the (?=(?:correct|right|best|option|choice|answer|letter|only|final)\b)|no(?=,)|must"
    r"|has|final|as follows|also|rather|obviously|surely)\b){0,14}",
)
ASKS = re.compile(
    r"(?:^|[.!?\n] ?)(?:so,? |or |and )?"
    r"(?:is|are|was|were|could|would|should|can|does|do|might|may)"
    r" (?:it|this|that|the|they|we|i|you|there|option|choice|[a-z])\b[^.!?\n]{0,80}$"
)
SENTENCE_MARK = re.compile(r"[.!?\n]")
NOT = re.compile(r"(?:not|never|neither|n't|isn't|cannot)\b")
DENIED = re.compile(r"n't\b|\b(?:not|never|cannot|unable)\b")
UNREAL = re.compile(
    r"\b(?:if|whether|suppose|assuming|unless|had|initially|at first|first thought|seemed"
    r"|tempting)\b"
)
HEDGE = re.compile(r"\b(?:might|could|may|possibly|perhaps|maybe|either)\b")
RIGHT = re.compile(
    r"[.)\]]?[\"']?(?: ?[:-])?(?: (?:is|seems|appears|looks|would be|must be|should be"
    r"|has to be)(?: (?:to be|\w{3,12}ly|indeed|also))?)?"
    r" (?:(?:the|my|our) )?(?:\w{3,12}ly )?(?:(?:most|best|only|final|single) )?(?:correct"
    r"|right|answer|best|better|true|accurate|appropriate|choice|option|one|match|suitable|likely"
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
    r"(?:if (?:by that )?you mean|if (?:by that )?you are asking"
    r"|if (?!i\b|we\b|you\b|forced\b|pressed\b|anything\b))"
)
CONDITION = re.compile(rf"[ ,(]{{0,2}}(?:only )?(?:{_IF}|when|unless\b|had it\b)")
_SUPPOSES = (
    rf"(?:\b(?:unless\b|{_IF})|(?:^|[.;!?\n] ?)(?:had|should) (?:it|the|this|that|they|you)\b)"
)
SUPPOSITION = re.compile(rf"{_SUPPOSES}|\b(?:whether|suppose|assuming)\b")
SUPPOSED = re.compile(
    rf"{_SUPPOSES}[^.;!?\n]{{1,120}}, "
    r"(?:(?!\bbut\b|\bso\b|\bhowever\b)[^.;!?\n]){0,40}$"
)
RUN = re.compile(r"(?:[(\[]?\b[a-z]\b[)\]]?(?:,? (?:and|or|nor) |, ?|/)){1,8}(?:option )?[(\[]?$")
VAGUE = re.compile(
    r"(?:clear|obvious|based|as follows|below|above|given|found|supported|correct|simple|shown"
    r"|provided|straightforward"
    r"|determined|not|likely|evident|in|from|that|because|therefore|right|wrong|as|one|of|here"
    r"|there|visible|i|it|to)\b",
)
DENIED_LABEL = re.compile(
    r"[)\]]? (?:is|was|would be)(?: not|n't)\b|[)\]]? (?:isn't|cannot|can't|doesn't)\b"
    r"|[)\]]? is (?:wrong|incorrect|false)\b"
)
IS = re.compile(r"\b(?:is|are|be|was|were)(?: (?:both|either))? [(\[]?$")
NOT_SOON = re.compile(r"[^.]{0,30}?(?:\bnot\b|n't)")
IN_A_LIST = re.compile(r"(?:\b(?:and|or|both)|[,/&]) (?:option )?[(\[]?$")
TEXT_END = re.compile(r"\W{0,2}(?:$|\n|[.,;!]| (?:because|since|as|which)\b)")
SMALL_LETTER = re.compile(r"([a-z])(?=[.)]?(?:\n|$)|[.)] )")
OPINION = re.compile(r"(?:i|we|you)\b")
