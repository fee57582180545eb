"""Words that say yes or no, outright or by what there is; for text in lower case."""

from __future__ import annotations

import re

_FIRM = r"(?:definite|clear|firm|hard|big|strong|solid|resounding|emphatic|simple)"
_NO = (
    r"(?:no|nope|nah|negative|false|incorrect|wrong"
    r"|not (?:really|at all|correct|true|quite|exactly)|never|(?:absolutely|definitely|certainly"
    r"|probably|likely|clearly|obviously|surely|of course|apparently|most likely|most certainly"
    r"|most definitely) (?:not|no)|(?:i )?(?:do not|don't) (?:think|believe) so|i think not"
    r"|(?:i'm afraid|i am afraid|i guess|i suppose) not|(?:it|there|he|she|they|we|i|you|this"
    r"|that) (?:\w{4,10}ly )?(?:is|are|does|do|did|was|were|has|have|can|am)(?: not"
    r"|n't)(?=\W{0,2}$)|(?:it )?(?:appears|seems) not(?=\W{0,2}$)|n(?=\W{0,2}$)"
    r"|(?:it|he|she|they|we|i|you) cannot(?=\W{0,2}$)|by no means|in no way|конечно,? нет"
    rf"|(?:an? )?{_FIRM} no|nee|όχι|לא|ไม่(?:ใช่|มี)?|nein|non|нет|n[aã]o|hay\u0131r|いいえ"
    r"|아니[요오]|nie|tidak|không|नहीं|لا|(?:当然|确实|并)?(?:不是的?|没有的?)|否"
    r"|不(?:对|正确|存在|会|能|在|可以)?|错误?|无|(?:い|あり)(?:ない|ません)|없(?:습니다|어요|다))"
)
_YES = (
    r"(?:(?:absolutely|definitely|certainly|probably|likely|clearly|obviously|surely|most likely"
    r"|most certainly|most definitely) (?:yes|so|correct|true|right|is|are|does)|yes|yep|yeah|yup"
    r"|yea|ye|y(?=\W{0,2}$)|absolutely|definitely|certainly|of course|undoubtedly(?! not)"
    rf"|конечно(?! не)|i suppose so|(?:an? )?{_FIRM} yes|\u03bd\u03b1\u03b9|כן|ใช่|没错"
    r"|(?:present|it's there)(?=\W{0,2}$)|sure(?:ly)?(?: thing)?|affirmative|true|correct|indeed"
    r"|exactly|that(?:'s| is) (?:correct|right|true)|(?:i )?(?:think|believe|guess) so"
    r"|i (?:do )?(?:think) so|(?:it|there|he|she|they|this|that) (?:sure |\w{4,10}ly )?(?:is|are"
    r"|does|do|has|have|can)(?: indeed)?(?=\W{0,2}$)"
    r"|(?:it )?(?:appears|seems|looks)(?: like)? (?:so|yes)(?=\W{0,2}$)"
    r"|right(?! now| side| of| hand)|s[iíì]|oui|ja|да|sim|はい|네|예|evet|tak|ya|हाँ|हां|نعم"
    r"|c[óo](?=\W{0,2}$)|(?:当然|确实)?(?:是|有|在|对)的?|当然|正确|存在|可以|会|能"
    r"|(?:います|ある|あります)(?=\W{0,2}$)|있(?:습니다|어요|다)(?=\W{0,2}$))"
)
_END = r"(?![\w'-])"
WORD = re.compile(rf"(?:(?P<no>{_NO})|(?P<yes>{_YES}))(?:{_END}|(?<=[^\x00-\u2e7f]))")
PLAIN = re.compile(rf"\b(?:(?P<no>no|nope|false)|(?P<yes>yes|yep|yeah|true)){_END}")
_AGAIN = r"[ ,.;/!\n-]{1,3}"
REPEATED = re.compile(rf"(?:{_AGAIN}(?:no|nope|false|yes|yep|yeah|true){_END}){{1,9}}")
STATED = re.compile(
    r"(?:\banswer to (?:whether|if)\b[^.\n]{1,120}? is(?= (?:an? )?(?:yes|no)\b)|\b(?:answer|ans"
    r"|conclusion|verdict|response|result)(?: (?!is\b)[\w']{1,15}){0,7}?(?: ?[:=\n]"
    r"| ?[-\u2013\u2014]>? ?| is:?|'s| would be:?| should be:?| must be:?| will be:?)|\b(?:i(?:'d"
    r"|'ll|'m| would| will| must| am)? (?:have to )?(?:say|answer|go(?:ing)? with"
    r"|lean(?:ing)? (?:towards?|to)|conclude)(?: that)?)|\b(?:it|that|this)(?:'s| is| would be"
    r"| has to be| must be)(?= (?:an? )?(?:\w{3,10} )?(?:yes|no)(?:[.,;!]|$| from me))|(?:^|\n)a: ?"
    r"|答案?(?:[是为]:?|:)|ответ ?[:\u2014\u2013-]"
    r"|(?:respuesta|resposta|risposta|réponse|antwort)(?: (?:es|é|è|ist)| ?:)"
    r"|(?:الإجابة|الجواب)(?: (?:هي|هو)| ?:)|정답?은? ?:?)\s?[\"'(]?(?:(?:a|an|the|definitely"
    r"|clearly|probably|therefore|simply)[ ,]){0,3}[\"'(]?"
)
CONCLUDED = re.compile(
    r"(?:\b(?:so|therefore|thus|hence|in conclusion|in short|overall|in summary|consequently"
    r"|finally|ultimately),?:? |所以,? ?|因此,? ?)"
)
BOTH = re.compile(
    r"\byes(?: and |,? but also )no\b|\bno and yes\b|\bneither yes nor no\b"
    r"|^1[.)] (?:yes\b[^\n]{0,200}\n2[.)] no|no\b[^\n]{0,200}\n2[.)] yes)\b|是也不是|是和否"
)
CHOICE = re.compile(
    r"[\"'(]?\byes[\"']?(?: or |/| / |\|)[\"']?no\b[\"')]?|是还是不是|是或否|是/否|да или нет"
    r"|(?:(?<!答案)是否|是不是|有没有|在不在)[^,.;:!?\n]{0,40}"
)
IDIOM = re.compile(
    r"\bno (?:doubt|question|wonder|problem|matter)(?: about it| that)?\b|\bnot only\b"
    r"|\b(?:(?:no ?one|nobody) (?:can|could|would)|(?:i|we|you) (?:can ?not|can't|could(?: not"
    r"|n't)))"
    r" (?:deny|dispute)\b"
    r"|\bthere(?: is|'s) no denying\b|\bwithout (?:a |any )?doubt\b"
)
COURTESY = re.compile(
    r"(?:sure|of course|certainly|absolutely)(?:[!,.] ?(?:let|here|to|i(?:'d|'ll| will| would) )\b"
    r"|[!.] the (?:image|picture|photo)\b)"
)
"""A polite beginning that answers nothing: "Sure! Here is a description."."""
LABEL = re.compile(r"[(\[]?\b[a-z][)\]] ?(?=(?:yes|no)\b)")
"""The label of an option before its word: "(B) no"."""
DENIAL = re.compile(
    r"\W{0,3}(?:there|it|they|he|she|this|that|i|we|the [\w-]{1,15}(?: [\w-]{1,15}){0,3}?|none"
    r"|nothing|no one|nobody)"
    r"(?:(?:'s|'re| is| are| was| were| do| does| did| has| have| can| could"
    r"| am)(?: \w{3,12}ly)?(?: not?\b|n't\b)|n't\b| cannot\b| not\b)"
    r"|\W{0,3}(?:no|not|none|nothing|nobody|never)\b|\W{0,2}[这该此在]?[张幅]?图?[片中里]{0,2}没有"
)
AFFIRMATION = re.compile(
    r"(?:it|this|that|(?:the|this|that) (?:statement|claim|description|assertion))(?:'s"
    r"| is) (?:indeed |definitely )?(?:true|correct|right)\W{0,2}$|(?:he|she|it|they|there|this|we"
    r"|i) (?:is|are|does|do|has|have|was|were|can)\W{0,2}$"
    r"|\W{0,3}(?:there (?:is|are|was|were|(?:appears?|seems?|looks) to be)|there's) (?:indeed "
    r"|clearly |definitely )?(?:an?|some|several|many|multiple|one|two|three|four|five|[1-9]\d{0,2}"
    r"|at least|the)\b|\W{0,3}there are (?!zero|only|few|more|less|probabl|likely"
    r"|reasons)(?:[a-z]{3,12} )?[a-z]{2,14}s\b|(?:this|that|which) is (?:indeed )?the case\b"
    r"|\W{0,3}the presence of [^,.]{1,40} is (?:\w{4,10}ly )?(?:evident|clear|confirmed)\b"
    r"|\W{0,3}(?:i|we|you|one) (?:can |do |did |clearly )?(?:clearly )?(?:see|spot|observe|notice"
    r"|detect|find|saw|spotted|noticed|found|detected) (?:an?|some|several|one|two|three|the|it"
    r"|them)\b|\W{0,3}(?:the|this) (?:image|picture|photo|scene) (?:has|contains|includes) (?:an?"
    r"|some|several|one|two|three"
    r"|many)(?: [\w-]{1,15}){1,3}(?: (?:on|in|at|near) the [\w-]{1,15})?\W{0,2}$|\W{0,3}(?:it|they"
    r"|he|she|the [\w-]{1,15}(?: [\w-]{1,15}){0,4}?) (?:indeed (?:is|are|does|do)"
    r"|(?:is|are|do) indeed|(?:does|do|did) (?!not\b)\w{3,12})\b|\W{0,3}(?!no|neither|only"
    r"|few)(?:an? |the )?[\w-]{1,15}(?: [\w-]{1,15}){0,4}? (?:is|are"
    r"|can be) (?:\w{3,9}ly )?(?:visible|present|seen|spotted|observed|found|shown|there|depicted"
    r"|in the (?:image|picture|photo))\b|(?:的确)?有(?:[一两几\d]|的|[^没无人,.][^没无,.]{0,7}\W?$)"
    r"|(?:[这该此在][张幅]?)?(?:图|画面|照片)[^没无不未是,.]{0,6}有|[^没无不未,.]{0,8}(?:可以"
    r"|能)看[到见]|(?:sí,? )?hay (?:una?|\w{2,6}s)\b|il y a (?:une?|des)\b|es gibt eine?\b"
    r"|há uma?\b|c'è un|ci sono|(?:هناك|يوجد) |[^,.]{1,20}が(?:います|あります)\W{0,2}$"
    r"|[^,.]{1,20}[이가] 있습니다\W{0,2}$"
)
OPENER = re.compile(
    r"(?:(?:the|my|final|correct) ){0,2}answer(?: is)?(?: that|:) ?(?=there\b|i\b|the\b)|(?:因此"
    r"|所以|综上(?:所述)?),? ?|(?:based on|in|from|looking at|according to|given"
    r"|judging (?:by|from)|considering|as (?:seen|shown) in|upon|after|for)\b[^,.\n]{0,60}, ?|(?:in"
    r"|from|on|at|to|near|behind|under|above|beside) (?:the|this) [^,.\n]{1,40}?(?:, ?"
    r"| )(?=there\b)|(?:the|this) (?:image|picture|photo) (?:\w{4,10}ly )?shows that (?=there\b)"
    r"|(?:unfortunately|actually|oh|well|hmm+|ok(?:ay)?|i(?:'m| am) sorry|sorry|honestly|apparently"
    r"|so|thus|therefore|overall|probably|likely|most likely|clearly|evidently"
    r"|obviously)(?:[,.!:]{1,3}|(?= )) ?(?:but )?|(?:you|the question) (?:asked|asks"
    r"|ask) [^.?\n]{1,100}[.?\n] ?|(?:it (?:seems|appears|looks like|looks as (?:if|though)"
    r"|is (?:true|clear|evident|obvious|apparent|certain))"
    r"|i can (?:\w{3,9}ly )?(?:confirm|see|tell|say)(?= (?:that|there))"
    r"|i(?:'d| would)? (?:believe|think|guess|say)"
    r"|i(?:'m| am) (?:\w{3,9}ly )?(?:confident|sure|certain))(?: that|:|,)? (?!so\b|not\b)"
)
NEGATIVE = re.compile(
    r"\b(?:see|sees|find|finds|contains?|shows?|has|have|wears?|wearing|includes?|features?"
    r"|depicts?|holds?|detect|spot|notice|found|saw|detected|spotted) (?:no|none)\b"
    r"|\b(?:unable|failed) to (?:find|see|spot|locate|detect) (?:any|an?)\b"
    r"|\b(?:is|are) (?:\w{4,10}ly )?(?:devoid of|without|free of)\b|\bthere (?:is|are) (?:zero|0)\b"
    r"|\bthere (?:appears?|seems?) to be no\b"
    r"|\bcan(?: ?not|'t) be (?:seen|spotted|found|observed|detected)\b"
    r"|^not (?:visible|present|that i|in (?:this|the)|there|here|seen|shown|any)\b"
    r"|\b(?:is|'s) (?:clearly )?(?:false|untrue|incorrect|wrong)\b"
    r"|\bi (?:do not|don't) (?:believe|think)\b"
    r"|\b(?:there|here)(?:'s| is| are| was| were)(?: \w{3,12}ly)? (?:no|nobody|neither)\b"
    r"|\b(?:(?:do|does|did|could)(?: not|n't)|can(?: ?not|'t))(?: \w{3,12}ly)? (?:appear|see|spot"
    r"|observe|notice|detect|find|locate|contain|include|show|have|seem|feature|depict|exist"
    r"|look)\b|\b(?:(?:am|'m|have) not|haven't) (?:seeing|finding|spotting|seen|found"
    r"|spotted) (?:any|an?)\b"
    r"|\bn(?:o|either)(?: [\w-]{1,15}){1,5}? (?:is|are|was|were|can be|appears?|exists?)\b"
    r"|\b(?:is|are|was|were|'s)(?: ?not|n't)\b"
    r"|\b(?:absent|lacks|missing|nowhere|none|nothing|nobody)\b|没有|不存在|看不[到见]|[未没][见看]"
    r"|\b\u043d\u0435\u0442\b|\u043d\u0435 \u0432\u0438\u0436\u0443"
    r"|\b(?:il n'y a (?:pas|aucun)|es gibt kein)|não há|tidak ada|không có|אין |ไม่มี|^zero "
    r"|non (?:c'è|ci sono)|لا يوجد|(?:いま)せん|없습니다"
)
ABSENCE = re.compile(
    r"\b(?:there(?:'s| is| are)(?: \w{3,12}ly)? (?:no|not|none)|there (?:isn't|aren't)"
    r"|not (?:visible|present|there|shown)|i (?:do not|don't|can ?not|can't) (?:see|find|spot)"
    r"|found none)\b"
)
"""A denial that something is there, after sentences that only set the scene."""
SURROUNDINGS = re.compile(r"^[^\w{]{1,12}|[\s\"'*]{1,12}$")
LISTED = re.compile(
    r", (?:an?|and|some|the) |\band (?:an?|some|several) |\b(?:instead of|rather than|only)\b"
)
CONCEDED = re.compile(
    r"\W{0,3}(?:al|even )?though\b[^,.;!?\n]{1,160},|\W{0,3}(?:while|even if)\b[^,.;!?\n]{1,160},"
)
"""An aside that opens a sentence: "although the picture is not sharp, ..."."""
EXISTENCE = re.compile(r"\bthere\b|\bno [\w-]{1,20} (?:is|are)\b")
TURN = re.compile(r"\b(?:but|however|although|though|except|yet)\b")
DOUBT = re.compile(
    r"\b(?:maybe|perhaps|possibly|might|may|(?<!that i )could(?! not\b)|either|partially|partly"
    r"|hardly|barely|scarcely|sort of|kind of"
    r"|sometimes|depends|other than|besides|no (?:shortage|lack|fewer|less))\b"
    r"|可能|也许|或许|大概|似乎|好像|不一定|有人说"
    r"|\b(?:caption|text|label|sign|title) (?:says|reads)\b"
)
ELSEWHERE = re.compile(r"\b(?:yes|yep|yeah|nope)\b|\bno\b(?=[.,;!?\"']|$)")
UNREAL = re.compile(r"\b(?:if|whether|suppose|assuming|unless(?! i(?:'m| am)\b))\b")
CLOSING = re.compile(r"[,:] ?(?:(?:but|so|thus|hence) )?(?:(?P<no>no)|(?P<yes>yes))\W{0,2}$")
NEGATED = re.compile(r"(?:not|neither|either)\b")
GOES_ON = re.compile(
    r" (?:(?:to|for) the (?:first|left)|and|or|but"
    r"|fewer|less|more|later|sooner|longer|in part|partly|partially|shortage|lack)\b"
    r"|[ ,(\u2013\u2014-]{1,3}or (?:(?:maybe|perhaps|possibly) )?(?:yes|no)\b"
    r"|[\"'] (?:is|was|are|appears|can)\b(?! (?:the|my) )"
)
NOT_THE_OTHER = re.compile(r"\W{0,3}(?:and |but )?not (?:an? )?(?P<no>no\b)?(?(no)|yes\b)")
DENIES_A_CLAIM = re.compile(r"that(?:'s| is) (?:wrong|not right|incorrect|not correct)$")
DENYING = re.compile(
    r"\b(?:no|not|never|none|nothing|nobody|without|false|untrue|incorrect|impossible|unlikely)\b"
    r"|n't\b"
)
_ALSO_PARTS = (
    "right true correct false wrong incorrect negative exactly never non ja ya tak nie 有 不 无 是"
    " 在 在的 会 能 可以 对 错 当然 存在 正确 不会 不能 不在 不可以"
    " n\u00e3o tidak kh\u00f4ng नहीं لا לא ไม่ nee"
)
ALSO_PART_OF_SENTENCES = frozenset(_ALSO_PARTS.split())
"""Words that are an answer only if they are the whole text."""
