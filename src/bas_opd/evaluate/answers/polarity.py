"""Words that say yes or no, outright or by what there is; for text in lower case."""

from __future__ import annotations

import re

_NO = (
    r"(?:no|nope|nah|negative|false|incorrect|wrong|not (?:really|at all|correct|true|quite"
    r"|exactly)|never"
    r"|(?:absolutely|definitely|certainly|probably|likely|clearly|obviously|surely|of course"
    r"|apparently|most likely|most certainly|most definitely) (?:not|no)"
    r"|(?:i )?(?:do not|don't) (?:think|believe) so|i think not|(?:i'm afraid|i am afraid"
    r"|i guess|i suppose) not|(?:it (?:is not|isn't|does not|doesn't)|there (?:is not|isn't"
    r"|are not|aren't))(?=\W{0,2}$)"
    r"|nein|non|нет|n[aã]o|hay\u0131r|いいえ|아니[요오]|nie|tidak|không|नहीं|لا|不是|否|没有|沒有|不对|不存在|不|无"
    r"|non,)"
)
_YES = (
    r"(?:(?:absolutely|definitely|certainly|probably|likely|clearly|obviously|surely"
    r"|most likely|most certainly|most definitely) (?:yes|so|correct|true|right|is|are|does)"
    r"|yes|yep|yeah|yup|yea|ye|absolutely|definitely|certainly|of course"
    r"|sure(?:ly)?(?: thing)?|affirmative|true|correct|indeed|exactly"
    r"|that(?:'s| is) (?:correct|right|true)|(?:i )?(?:think|believe|guess) so"
    r"|i (?:do )?(?:think|believe) so"
    r"|it (?:is|does)(?=\W{0,2}$)|there (?:is|are)(?=\W{0,2}$)|they (?:are|do)(?=\W{0,2}$)"
    r"|right(?! now| side| of| hand)"
    r"|s[iíì]|oui|ja|да|sim|はい|네|예|evet|tak|ya|हाँ|हां|نعم|是的|是|有|对|對|存在)"
)
_END = r"(?![\w'-])"
WORD = re.compile(rf"(?:(?P<no>{_NO})|(?P<yes>{_YES}))(?:{_END}|(?<=[^\x00-\u2e7f]))")
PLAIN = re.compile(rf"\b(?:(?P<no>no|nope|false)|(?P<yes>yes|yep|yeah|true)){_END}")
STATED = re.compile(
    r"(?:\b(?:answer|ans|conclusion|verdict|response"
    r"|result)(?: (?!is\b)[\w']{1,15}){0,7}?(?: ?[:=\n]| ?[-\u2013\u2014]>? ?| is:?"
    r"|'s| would be:?| should be:?| must be:?| will be:?)"
    r"|\b(?:i(?:'d|'ll| would| will| must)? (?:say|answer|go with|conclude)(?: that)?)"
    r"|(?:^|\n)a: ?|答案(?:[是为]:?|:)|ответ ?[:\u2014\u2013-]|(?:respuesta|resposta|risposta"
    r"|réponse|antwort)(?: (?:es|é|è|est|ist)| ?:))"
    r"\s?[\"'(]?(?:(?:a|an|the|definitely|clearly|probably|most likely|likely|therefore|simply"
    r"|clear|firm|resounding|definite)[ ,]){0,3}[\"'(]?"
)
CONCLUDED = re.compile(
    r"(?:\b(?:so|therefore|thus|hence|in conclusion|in short|overall|in summary|consequently"
    r"|finally|ultimately),?:? |所以,? ?|因此,? ?)"
)
BOTH = re.compile(
    r"\byes(?: and |,? but also )no\b|\bno and yes\b|\bneither yes nor no\b|是也不是|是和否"
)
CHOICE = re.compile(
    r"[\"'(]?\byes[\"']?(?: or |/| / |\|)[\"']?no\b[\"')]?|是还是不是|是或否|是/否|да или нет"
)
IDIOM = re.compile(
    r"\bno (?:doubt|question|wonder|problem|matter)(?: about it| that)?\b|\bnot only\b"
)
DENIAL = re.compile(
    r"\W{0,3}(?:there|it|they|he|she|this|that|i|we|the [\w-]{1,15}(?: [\w-]{1,15}){0,3}?|none"
    r"|nothing|no one|nobody)"
    r"(?:(?:'s|'re| is| are| was| were| do| does| did| has| have| can| could"
    r"| am)(?: \w{3,12}ly)?(?: not?\b|n't\b)|n't\b| cannot\b| not\b)"
    r"|\W{0,3}(?:no|not|none|nothing|nobody|never)\b"
)
AFFIRMATION = re.compile(
    r"(?:it|this|that|(?:the|this|that) (?:statement|claim|description|assertion))(?:'s"
    r"| is) (?:indeed |definitely )?(?:true|correct|right)\W{0,2}$|"
    r"(?:he|she|it|they|there|this|that|we|i) (?:is|are|does|do|has|have|was|were|can)\W{0,2}$|"
    r"\W{0,3}(?:there (?:is|are|was|were)|there's) (?:indeed |clearly |definitely )?(?:an?"
    r"|some|several|many|multiple|two|three|four|five|[1-9]\d{0,2}|at least|the)\b"
    r"|\W{0,3}i (?:can |do |could |clearly )?(?:clearly )?(?:see|spot|observe|notice|detect"
    r"|find) (?:an?|some|several|two|three|the|it|them)\b"
    r"|\W{0,3}(?:it|they|he|she|the [\w-]{1,15}(?: [\w-]{1,15}){0,4}?) (?:indeed (?:is|are"
    r"|does|do)|(?:is|are|does|do) indeed|(?:does|do|did) (?!not\b)\w{3,12})\b"
    r"|\W{0,3}(?:an?|the|some|two|three|several)(?: [\w-]{1,15}){1,5}? (?:is"
    r"|are) (?:\w{3,9}ly )?(?:visible|present|seen|shown|there|depicted|in the (?:image"
    r"|picture|photo))\b"
)
OPENER = re.compile(
    r"(?:(?:the|my|final|correct) ){0,2}answer(?: is)?(?: that|:) ?(?=there\b|i\b|the\b|it\b)|"
    r"(?:based on|in|from|looking at|according to|given|judging (?:by|from)|considering"
    r"|as (?:seen|shown) in|upon|after|for|yes or)\b[^,.\n]{0,60}, ?"
    r"|(?:in|from) (?:the|this) (?:image|picture|photo|scene) (?=there\b|i\b|no\b)"
    r"|(?:unfortunately|actually|oh|well|hmm+|ok(?:ay)?|i(?:'m| am) sorry|sorry|in fact"
    r"|honestly|without a doubt|apparently|so|thus|therefore"
    r"|overall|probably|likely|most likely|in conclusion|in short|after all)(?:[,.!:]{1,3}"
    r"|(?= )) ?(?:but )?"
    r"|(?:it (?:seems|appears)|i(?:'d| would)? (?:believe|think|guess|say)|i(?:'m"
    r"| am) (?:\w{3,9}ly )?(?:confident|sure|certain))(?: that|:|,)? (?!so\b|not\b)"
)
NEGATIVE = re.compile(
    r"\b(?:see|sees|find|finds|contains?|shows?|has|have|wears?|wearing|includes?|features?|depicts?"
    r"|holds?) no\b"
    r"|^not (?:visible|present|that i|in (?:this|the)|there|here|seen|shown|any)\b|\b(?:is"
    r"|'s) (?:clearly )?(?:false|untrue|incorrect|wrong)\b"
    r"|\bi (?:do not|don't) (?:believe|think)\b|"
    r"\b(?:there|here)(?:'s| is| are| was| were)(?: \w{3,12}ly)? (?:no|not|none|nothing|nobody"
    r"|neither)\b|\bthere (?:isn't|aren't|wasn't|weren't)\b"
    r"|\b(?:(?:do|does|did|could)(?: not|n't)|can(?: ?not|'t))(?: \w{3,12}ly)? (?:appear|see"
    r"|spot|observe|notice|detect|find|contain|include|show|have|seem|feature|depict|exist"
    r"|look|identify any|identify an?)\b"
    r"|\bn(?:o|either)(?: [\w-]{1,15}){1,5}? (?:is|are|was|were|can be|appears?|exists?)\b"
    r"|^\W{0,3}no [a-z]"
    r"|\b(?:is|are|was|were|'s)(?: ?not|n't)\b|\b(?:absent|lacks|missing|nowhere|none|nothing"
    r"|nobody|no one)\b"
    r"|没有|不存在|看不到|нет |не вижу"
)
SURROUNDINGS = re.compile(r"^[^\w{]{1,12}|[\s\"'*]{1,12}$")
LISTED = re.compile(r", (?:an?|and|some|the) |\b(?:instead of|rather than|only)\b")
TURN = re.compile(r"\b(?:but|however|although|though|except|yet)\b")
DOUBT = re.compile(
    r"\b(?:maybe|perhaps|possibly|might|may|could(?! not\b)|either|partially|partly|sort of|kind of"
    r"|sometimes|depends)\b"
)
ELSEWHERE = re.compile(r"\b(?:yes|yep|yeah|nope)\b|\bno\b(?=[.,;!?\"']|$)")
UNREAL = re.compile(r"\b(?:if|whether|suppose|assuming|unless)\b")
CLOSING = re.compile(r"[,:] ?(?:(?P<no>no)|(?P<yes>yes))\W{0,2}$")
NEGATED = re.compile(r"(?:not|neither|either)\b")
GOES_ON = re.compile(r" (?:and|or|but|fewer|less|more|later|sooner|longer)\b")
DENYING = re.compile(
    r"\b(?:no|not|never|none|nothing|nobody|without|false|untrue|incorrect|impossible|unlikely)\b"
    r"|n't\b"
)
_ALSO_PARTS = (
    "right true correct false wrong incorrect negative exactly never non ja ya tak nie 有 不 无 是"
)
ALSO_PART_OF_SENTENCES = frozenset(_ALSO_PARTS.split())
"""Words that are an answer only where they stand alone."""
