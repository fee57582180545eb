"""Sentences that say the same in many words: every word of a list is read alike."""

# ruff: noqa: RUF001  (answers in other scripts)

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from bas_opd.answers import Answer, choice, short, yes_no

COLOURS = {"A": "red", "B": "blue", "C": "green", "D": "yellow"}

# In a template, {a|b} stands for either, and * for nothing.
YES = """
{Yes|Yep|Yeah|Yup|Absolutely|Definitely|Certainly|Of course|Sure|Correct|True|Indeed|Exactly}.
{Undoubtedly|Affirmative|Right|That's correct|That is right|I think so|I believe so|I guess so}.
{It|There|He|She} {is|does|has|can}.
{They|There} {are|do|have}.
{Probably|Likely|Most likely|Clearly|Obviously|Surely|Definitely} yes.
There is {a|one|at least one} dog in the picture.
There are {some|several|many|multiple|two|three|four|five|12|at least two} dogs in the picture.
There {was|is indeed|is clearly|is definitely|appears to be|seems to be} a dog in the picture.
{I|We|You} {see|can see|can clearly see|do see|spot|notice|observe|detect|found} a dog.
{I|We} {spotted|noticed|saw|detected} {a|some|several|two|the} dogs.
{The|This} {image|picture|photo|scene} {has|contains|includes} {a dog|some dogs|many dogs}.
{A dog|The dog|One dog} is {visible|present|seen|shown|depicted|clearly visible} in the image.
{Some|Two|Several} dogs {are|can be} {seen|spotted|observed|found} in the image.
The {statement|claim|description} is {true|correct|right}.
{This|That} is {true|correct|right|the case}.
The {answer|conclusion|verdict|response|result} {is|is:|would be|should be|must be} yes.
{Answer|Ans|Conclusion|Verdict|Response|Result}: yes
{I'd say|I would say|I'll go with|I'm going with|I would answer|I must say|I conclude} yes.
{It's|That's|It is|That would be|This has to be} a {clear |firm |definite |*}yes.
{So|Therefore|Thus|Hence|In conclusion|In short|Overall|Consequently|Finally|Ultimately}, yes.
{Based on|Looking at|According to|Judging by|Considering|Given} the image, yes.
{In|From|On} the picture, there is a dog.
{Well|Okay|Oh|Actually|In fact|Honestly|Clearly|Obviously|Apparently}, yes.
{It seems|It appears|It looks like|I think|I believe|I guess} there is a dog.
{It is clear|It is evident|It is obvious|I am sure|I am confident} that there is a dog.
{There's no denying|No one can deny|Nobody could deny} that there is a dog.
{No doubt|Without a doubt|Without any doubt}, there is a dog.
{A|It is a|That's a} {definite|clear|firm|hard|big|strong|solid|resounding|emphatic|simple} yes.
{Most likely|Most certainly|Most definitely|Absolutely|Certainly|Likely} {yes|so|true|correct}.
{Sure thing|It sure is|Yes indeed|It is indeed|I suppose so|I do think so}.
{It's there|Present|Ye|Yea|Y}.
{This|That|She} {definitely|clearly} {is|does|has|can}.
They {definitely|clearly} {are|do|have|can}.
It {appears|seems} so.
It {looks|seems|appears} like {so|yes}.
{Oui|Ja|Да|Sim|Sí|はい|네|예|Evet|Tak|Ya|हाँ|نعم|Có|Ναι|כן|ใช่|Конечно}.
{是|是的|有|有的|对|对的|在|当然|当然是|确实是|正确|存在|可以|会|能|没错|います|あります|있습니다|있어요|있다}。
The answer to {whether|if} there is a dog is yes.
The answer {will be|would be:} yes.
The answer is {definitely|clearly|probably|most likely|likely} yes.
The answer is {simply|a clear|a firm|a resounding} yes.
{I lean towards|I'm leaning to|I will say|I am going with} yes.
{It|That|This} {must be|has to be} yes.
{La respuesta es|Respuesta:} sí.
{Die Antwort ist|Antwort:} ja.
{الإجابة هي|الجواب هو|الجواب:|الإجابة:} نعم
{答案是|答案:|答:|所以,|因此,|因此|所以} 是的
A: Yes
The answer - yes.
The dog is on the left. {So|Therefore|Thus|Hence|In conclusion|In short}, yes.
The dog is on the left. {Overall|In summary|Consequently|Finally|Ultimately}, yes.
{It|This|That} is {indeed|definitely} {true|correct|right}.
The {assertion|statement} is {indeed |*}correct.
There are {four|five|many|multiple} dogs in the picture.
{Which|This} is indeed the case.
The presence of a dog is {evident|clear|confirmed|visible|clearly visible}.
The picture contains {several|one|two|three|many} small dogs {on|in|at|near} the grass.
{It|The dog} {does|did} {appear|show|run} in the image.
{Some|Two|Three|Several} dogs are {in the image|in the picture|in the photo|there|seen}.
{图中|画面中|照片中|图片里|这张图片中}有{一只狗|两只狗}。
确实有一只狗。
可以看到一只狗。
Sí, hay {un perro|perros}.
Il y a {un chien|des chiens}.
Há um cão.
C'è un cane.
Ci sono cani.
هناك كلب
يوجد كلب
犬が{います|あります}。
개가 있습니다.
{The answer|My answer} is that {there is|I see|the image contains} a dog.
{The correct answer|The final answer} is that {there is|I see|the image contains} a dog.
{综上所述|因此|所以},{图中有一只狗|是的}。
{Based on|In|From|Looking at|According to|Given|Judging by} the image, there is a dog.
{Judging from|Considering|As seen in|As shown in} the image, there is a dog.
{Upon viewing|After viewing|For} the image, there is a dog.
{In|From|On|At|Near|Behind|Under|Above|Beside} {the|this} table, there is a dog.
The {image|picture|photo} {clearly |*}shows that there is a dog.
{Actually|Oh|Well|Hmm|OK|Okay|In fact|Honestly|Without a doubt|Apparently|So|Thus}, there is a dog.
{Therefore|Overall|Probably|Likely|Most likely|In conclusion}, there is a dog.
{In short|After all|Clearly|Evidently|Obviously|Undoubtedly}, there is a dog.
You {asked|ask} whether there is a dog. There is a dog.
The question {asks|asked} if there is a dog. {Yes|There is a dog}.
It looks as {if|though} there is a dog.
It is {true|clear|evident|obvious|apparent|certain} that there is a dog.
I can {confirm|see|tell|say|clearly see} that there is a dog.
I {would say|would think|am certain|am sure|am fairly confident} that there is a dog.
I {will|would|would have to} {say|go with|conclude} yes.
{He|She} was.
{They|We} {were|do}.
There {looks to be|appears to be} one dog in the picture.
There were some dogs in the picture.
{One|You} {can|did|clearly} {see|spot|find} {a dog|three dogs|them}.
{Resposta|Risposta|Réponse}: {sim|sì|oui}
{정답은|정답:} 예
Es gibt {ein|eine} Hund.
{They|The two dogs} {indeed are|are indeed|do indeed} here.
{It|That|This} {must be|has to be} yes.
{So|Therefore|Thus|Hence|Overall|Consequently|Finally|Ultimately}{, |: | }yes.
{In conclusion|In short|In summary|所以|因此}{, |: | }yes.
The answer is {definitely|clearly|probably|most likely|likely|simply|therefore} yes.
The answer is a {clear|firm|resounding|definite} yes.
{Unfortunately|Sorry|I'm sorry|In fact|Undoubtedly|After all|Without a doubt}, {yes|it is}.
{In fact|Undoubtedly|After all|Without a doubt|In conclusion|In short}, {there is a dog|it is}.
{That's|That is} {correct|right|true}.
{Absolutely|Definitely|Obviously|Probably|Clearly|Surely} {yes|so|right|correct}.
{It|He|She|This|That} {is|does|has|can}.
{It|He|She|This|That} {definitely|clearly|surely} {is|does|has}.
They {definitely|clearly|surely} {are|do|have}.
{I believe so|I think so|I guess so}.
A: yes
There are {four|five|many|multiple} {dogs|small dogs|big ones}.
{Some|Two|Three|Several} {dogs|small dogs|people} are {visible|there|present|in the photo}.
{是的|有|있습니다|ある}.
The cat is on the left. {So|Therefore|Thus|Hence}{, |: | }yes.
The cat is on the left. {Overall|Consequently|Finally|Ultimately}{, |: | }yes.
The cat is on the left. {In conclusion|In short|In summary|所以|因此}{, |: | }yes.
The cat is on the left. The answer is {definitely|clearly|probably|most likely} yes.
The cat is on the left. The answer is {likely|simply|therefore} yes.
The cat is on the left. The answer is a {clear|firm|resounding|definite} yes.
The cat is on the left. {Unfortunately|Sorry|I'm sorry|In fact}, yes.
The cat is on the left. {Undoubtedly|After all|Without a doubt}, yes.
The cat is on the left. {In conclusion|In short}, it is.
The cat is on the left. {That's|That is} {correct|right|true}.
The cat is on the left. {Absolutely|Definitely|Obviously} {yes|so|right|correct}.
The cat is on the left. {Probably|Clearly|Surely} {yes|so|right|correct}.
The cat is on the left. {It|He|She|This|That} {is|does|has|can}.
The cat is on the left. {It|He|She|This|That} {definitely|clearly|surely} {is|does|has}.
The cat is on the left. They {definitely|clearly|surely} {are|do|have}.
The cat is on the left. {I believe so|I think so|I guess so}.
The cat is on the left. A: yes
The cat is on the left. {是的|有|있습니다|ある}.
"""
NO = """
{No|Nope|Nah|Negative|False|Incorrect|Wrong|Never|Not really|Not at all|Not true|Not correct}.
{Absolutely|Definitely|Certainly|Probably|Clearly|Obviously|Of course|Most likely} not.
{I don't think so|I do not think so|I don't believe so|I think not|I'm afraid not|I guess not}.
{By no means|In no way|Not quite|Not exactly}.
{It|He|She} {is not|isn't|does not|doesn't|has not|hasn't|cannot}.
There {is|are|was|were} no dogs in the picture.
There {isn't a dog|aren't any dogs|wasn't a dog|is not a dog|are not any dogs} in the picture.
There {appears|seems} to be no dog.
There {is|are} {clearly no|currently no|zero|nothing like|none of the} dogs in the picture.
{I|We} {do not|don't|cannot|can't|did not|could not} {see|find|spot|notice|observe|detect} a dog.
{I|We} {see|find|found|spotted|detected|notice} no dogs.
I {have not seen|haven't seen|have not found|am not seeing} a dog.
I was unable to {find|see|spot|locate|detect} a dog.
The {image|picture} does not {contain|include|show|have|feature|depict|appear to have} a dog.
The {image|picture} {contains|shows|has|includes|features|depicts} no dog.
{The dog|A dog} is {not visible|not present|not shown|absent|missing|nowhere to be seen}.
{No dog|No dogs} {is visible|are visible|can be seen|was found|appears here|exists}.
{None|Nothing|Nobody|No one} is {visible|wearing a hat|in the room}.
The picture is {devoid of|without|free of} dogs.
A dog {cannot|can't} be {seen|spotted|found|observed|detected}.
The {answer|conclusion|verdict|response|result} {is|is:|would be|should be|must be} no.
{Answer|Ans|Conclusion|Verdict|Response|Result}: no
{I'd say|I would say|I'll go with|I'm going with|I would answer|I must say|I conclude} no.
{It's|That's|It is|That would be|This has to be} a {clear |firm |definite |*}no.
{So|Therefore|Thus|Hence|In conclusion|In short|Overall|Consequently|Finally|Ultimately}, no.
{Based on|Looking at|According to|Judging by|Considering|Given} the image, no.
{Unfortunately|Sorry|I'm sorry|Well|Actually|In fact|Honestly}, no.
The {statement|claim} is {false|incorrect|wrong|untrue}.
{A|It is a|That's a} {definite|clear|firm|hard|big|strong|solid|resounding|emphatic|simple} no.
{Most likely|Most certainly|Most definitely|Surely|Apparently|Likely} not.
{Probably|Likely|Clearly|Definitely} no.
{I am afraid|I'm afraid|I guess|I suppose} not.
{They|We|You} {are not|do not|have not|did not|were not|cannot|aren't|don't|haven't|didn't}.
It {appears|seems} not.
N
{Nee|Nein|Non|Нет|Não|Hayır|いいえ|아니요|아니오|Nie}.
{Tidak|Không|नहीं|لا|Όχι|לא|ไม่|ไม่ใช่|Конечно нет|Конечно, нет}.
{不|不是|不是的|没有|没有的|否|不对|不正确|不存在|不会|不能|不在|不可以|错|错误|无|当然不是|确实没有|并不是|并没有}。
{いない|いません|ありません|없습니다|없어요|없다}。
The answer to {whether|if} there is a dog is no.
The answer {will be|would be:} no.
The answer is {definitely|clearly|probably|most likely|likely} no.
The answer is {simply|a clear|a firm|a resounding} no.
{I lean towards|I'm leaning to|I will say|I am going with} no.
{It|That|This} {must be|has to be} no.
{La respuesta es|Respuesta:} no.
Réponse: non.
{Die Antwort ist|Antwort:} nein.
{الإجابة هي|الجواب هو|الجواب:|الإجابة:} لا
{정답은|정답:} 아니요
{答案是|答案:|答:|所以,|因此,} 不是
A: No
The answer - no.
The cat is on the left. {So|Therefore|Thus|Hence|In conclusion|In short}, no.
The cat is on the left. {Overall|In summary|Consequently|Finally|Ultimately}, no.
The man {wears|is wearing|holds|sees|finds|has} no hat.
{I|We} {saw|spot|found} {no dogs|none}.
I looked for dogs but none.
The picture is {completely |*}{devoid of|without|free of} dogs.
Not {visible|present|that I can see|in this image|in the picture|there|here|seen|shown|any}.
{I don't|I do not} {believe|think} there is a dog.
There is {nothing|nobody|none|neither} here.
There {weren't any dogs|wasn't any dog}.
{I|We} {cannot|can't|could not|did not} {locate|find} dogs.
Dogs {do not|don't} {exist|appear|seem to be} here.
{I am|I'm} not {seeing|finding|spotting} any dogs.
I {have not|haven't} {seen|found|spotted} any dogs.
{No dog|Neither dog} {is|was|can be|appears|exists} {here|visible|seen}.
No {dogs|dog here}.
{No one|Nobody} is there.
Zero dogs.
图中{没有|不存在|看不到|看不见|未见|没看到}狗。
Il n'y a {pas de|aucun} chien.
Es gibt keinen Hund.
No hay {perros|un perro}.
Não há cão.
Tidak ada anjing.
Không có chó.
אין כלב
ไม่มีสุนัข
Non c'è un cane.
Non ci sono cani.
لا يوجد كلب
犬はいません。
개가 없습니다.
我没有看到狗。
Собаки нет.
Не вижу собаки.
The picture shows a street with cars. {There is no dog|There are none}.
The picture shows a street with cars. {There isn't a dog|There aren't any dogs|There is not a dog}.
The picture shows a street with cars. {It is not visible|It is not present|It is not there}.
The picture shows a street with cars. {It is not shown|I do not see it}.
The picture shows a street with cars. {I don't see it|I cannot see it}.
The picture shows a street with cars. {I can't find a dog|I can't spot it|I found none}.
I looked at it closely{,|:} {so|thus|hence|but} no.
I {am|do|have} not.
{This|That} is not.
{So|Therefore|Thus|Hence|Overall|Consequently|Finally|Ultimately}{, |: | }no.
{In conclusion|In short|In summary|所以|因此}{, |: | }no.
The answer is {definitely|clearly|probably|most likely|likely|simply|therefore} no.
The answer is a {clear|firm|resounding|definite} no.
{Unfortunately|Sorry|I'm sorry|In fact|After all}, {no|it is not}.
{In fact|After all|In conclusion|In short|Unfortunately}, {there is no dog|I don't see a dog}.
I {don't|do not} {think|believe} so.
{It|He|She|This|That} {was|is|does|has|can} not.
{They|We|You} {are|were|do|have|can} not.
{This|That} {isn't|wasn't|doesn't}.
{Absolutely|Definitely|Obviously|Probably|Clearly|Surely} {not|no}.
There {isn't a dog|aren't any dogs|wasn't a dog|weren't any dogs}.
No {dog|dogs} {here|in sight}.
{No hay perros|No one is there|I looked but none|Нет|没有|确实没有|不存在|없습니다}.
The cat is on the left. {So|Therefore|Thus|Hence}{, |: | }no.
The cat is on the left. {Overall|Consequently|Finally|Ultimately}{, |: | }no.
The cat is on the left. {In conclusion|In short|In summary|所以|因此}{, |: | }no.
The cat is on the left. The answer is {definitely|clearly|probably|most likely} no.
The cat is on the left. The answer is {likely|simply|therefore} no.
The cat is on the left. The answer is a {clear|firm|resounding|definite} no.
The cat is on the left. {Unfortunately|Sorry|I'm sorry|In fact|After all}, no.
The cat is on the left. {In fact|After all|In conclusion}, {there is no dog|I don't see a dog}.
The cat is on the left. {In short|Unfortunately}, {there is no dog|I don't see a dog}.
The cat is on the left. I {don't|do not} {think|believe} so.
The cat is on the left. {It|He|She|This|That} {was|is|does|has|can} not.
The cat is on the left. {They|We|You} {are|were|do|have|can} not.
The cat is on the left. {This|That} {isn't|wasn't|doesn't}.
The cat is on the left. {Absolutely|Definitely|Obviously|Probably|Clearly|Surely} {not|no}.
The cat is on the left. There {isn't a dog|aren't any dogs}.
The cat is on the left. {Нет|没有|确实没有|不存在|없습니다}.
"""
NO_ANSWER = """
I {cannot|can't|could not|couldn't|am unable to|am not able to} {determine|tell|say|answer} that.
I {cannot|can't} {identify|confirm|make out|discern|verify|infer|ascertain|decide|judge} it.
I {cannot|can't} {conclude|help|assist|comment|distinguish|recognize|recognise|analyze} {that|it}.
It is {impossible|not possible|hard|difficult} to {tell|say|determine|know|answer|calculate}.
It {cannot|can't} be {determined|told|said|answered|identified|known|confirmed|read|verified}.
There is no way {to tell|to know|to say|of telling|of knowing}.
{I|We} {do not|don't} know.
I {do not|don't} {know|understand} {this|the question}.
I {do not|don't} have {figures|data|enough information|sufficient context|access to the image}.
I have no {figures|data|information|idea|clue|answer|opinion|knowledge of it}.
There is {not enough|insufficient|no|no further|no additional} {information|context|detail}.
{I am|I'm} not {sure|certain|confident|entirely sure}.
It is {unclear|uncertain|not clear|unknown|not known|not specified|not stated|not mentioned}.
{Unsure|Unclear|Uncertain|Unknown|N/A|Not applicable|No idea|No comment|No clue|No answer}.
{Nobody|No one|Nobody really} {knows|can say|can tell|could tell}.
I {cannot|can't|am unable to|do not} {see|view|access|open} the {image|picture|photo}.
The {image|picture} is {not available|not provided|not attached|unavailable|not accessible}.
Please {provide|upload|share|attach} {an image|the picture}.
The {picture|text} is too {blurry|small|dark|low} to {read|see|tell}.
The image does not {clearly show whether|provide enough information|indicate whether} there is one.
As an AI, I cannot view images.
I {apologize|apologise}, but I cannot answer.
"""
CHOSEN = """
The {correct|right|best|final|chosen|selected|matching|appropriate|closest} {option|choice} is B.
The {most accurate|suitable|remaining|valid|correct} {response|one|letter|selection|match} is B.
The {correct|right|best} {statement|description|answer} {is|was|would be|should be|must be} B.
The answer {is|will be|has to be|ought to be|might be|could be|may be|appears to be} B.
The answer {seems to be|is likely|is probably|is clearly|is definitely|is certainly|is simply} B.
{Answer|Final answer|Correct answer|Option|Choice|Conclusion|Verdict|Response}: B
My {choice|pick|guess|selection|final choice|answer} is B.
{I|We} {choose|pick|select|go with|go for|opt for|vote for|settle on|lean towards|say|guess} B.
I {would|will|must|should} {choose|pick|select|go with|answer|conclude} {option |*}B.
{I'd|I'll} {pick|choose|go with|say} B.
I {believe|think} {it is|it's|the answer is|that it is} B.
{Choose|Pick|Select|Going with|Choosing|Picking} B.
{So|Therefore|Thus|Hence|Consequently|Overall|Accordingly|Finally}, {B|it is B|option B}.
{In conclusion|In summary|In short|To conclude|To summarize}, B.
{It|This} {is|must be|should be|would be|has to be} {B|option B|choice B|(B)}.
{This|It} {corresponds to|matches|points to} option B.
{Option|Choice} B {is|seems|appears|looks} {correct|right|best|the best|most likely|accurate}.
B {is|must be|should be|would be} the {correct|right|best} {answer|choice|option|one|match}.
Option B {fits|matches|describes} the car {best|correctly|accurately|perfectly}.
Option B {best|correctly|accurately} {describes|matches|fits|represents} the car.
B {because|since|as} the car is blue.
B {rather than|instead of} A.
{Not A|It is not A|It isn't A}, {but B|it's B}.
A is {wrong|incorrect|not right|false|ruled out|excluded|eliminated}, so B.
We can {rule out|exclude|eliminate} A, C and D, leaving B.
{Wait|Hold on|Actually|Correction|Scratch that|Oops|Sorry|On second thought}, the answer is B.
The answer is A. {Wait|Hold on|No wait|Actually|Hmm, wait|Oops|Correction}, {it's|it is} B.
{Clearly|Definitely|Probably|Certainly|Obviously|Surely}, it is B.
If {I had to choose|forced to choose|pressed}, B.
The car could be A or C by its shape. {Hence|Thus|So|Therefore|Consequently}, {B|option B}.
The car could be A or C by its shape. {To conclude|To summarize|Accordingly}, {B|option B}.
The car could be A or C by its shape. {Overall|Finally}, {B|option B|it is B}.
A is too dark, {hence|thus|so|therefore|consequently|which leaves|leaving} {B|option B|(B)}.
It {has to be|must be|should be|would be|was} {definitely |likely |*}{B|option B|(B) blue}.
{The only one that remains is|The one remaining is|What remains is|Namely,} B.
The answer {appears to be|ought to be|seems to be|has to be|might be|will be|may be|was} B.
The {answer|correct option} {–|—|-|->|:|=} B
{Ответ:|Ответ —|Правильный ответ:|الإجابة:|الجواب:|الإجابة الصحيحة هي|الجواب هو} B
{Đáp án là|Đáp án:|Jawaban:|Jawaban adalah|Cevap:|คำตอบคือ|คำตอบ:|उत्तर:|जवाब:} B
{정답은|정답:|정답 :|답은|答え:|答えは|正解は} B
{Respuesta:|La respuesta es|La respuesta correcta es|Resposta:|A resposta é|Opción:|Opção:} B
{Risposta:|La risposta è|Réponse:|La réponse est|Antwort:|Die Antwort ist|Opzione:} B
{答案应该是|答案应当是|答案是|应该选|应选|我选|故选|选择|选|因此选|所以选|所以答案是|应该是} B
I {opt for|am opting for|am picking|am going with|am choosing|am selecting} B.
The {accurate|suitable|remaining|valid} {option|letter|statement|description|one} was B.
The car is new. {So|Thus|Therefore|Please} {choose|pick|select|go with} B.
{Verdict|My verdict|Final verdict|Solution}: B
A seems fine at first. But the {chosen|selected|final|best|valid} {option|choice|one} is B.
A seems fine at first. But I {will|must|should|can} {pick|go with|opt for|vote for} B.
At first the answer seems to be A. However, the {best|final|chosen|selected} {option|one} is B.
At first the answer seems to be A. However, the {accurate|suitable|remaining|valid} choice is B.
The answer is not A. The {correct|right} {response|letter|selection|match|description} is B.
Some would answer A. The {correct|right|best|final|chosen|selected} option {is|was|must be} B.
Some would answer A. The {matching|appropriate|accurate|closest|suitable|valid} option was B.
Some would answer A. The correct option {would be|should be|will be|has to be|ought to be} B.
Some would answer A. The correct choice {appears|seems} to be B.
The answer {was|will be|has to be|ought to be|might be|may be|appears to be} B. A is red.
Many say the answer is A. I {will|can|must|should|would} {choose|pick|go with|opt for} B.
Many say the answer is A. I {will|would|can|must|should|have to} most certainly choose B.
Many say the answer is A. I {have to|am going to} {select|vote for|settle on|say|answer} B.
The answer seems to be A. {So|Thus|Therefore,|Please} {choose|pick|select|go with} B.
The answer seems to be A. {So|Thus} {choosing|picking|selecting|going with} B.
My {choice|pick|guess|selection|final choice} is B, though A is close.
The {conclusion|solution|verdict|response} is B, though A is close.
A is close. {Ответ:|الإجابة:|الجواب هو|जवाब:|उत्तर:|정답은|정답:|답은|答え:|答えは} B
A is close. {Respuesta:|La respuesta es|Risposta:|Antwort:|Die Antwort ist|Opção:|Opzione:} B
A is close. {Réponse:|Resposta:|答案应该是|答案应当是|答案选择|选择|应该选择|正解は} B
The answer is {most likely|probably|clearly|definitely|certainly|therefore|then|indeed} B, not A.
The answer is {simply|just|labeled|indicated by|represented by|actually|still|rather} B, not A.
The answer is {the best option|the right choice|the final answer|obviously|surely} B, not A.
A is close, but it {corresponds to|points to|is definitely|is likely|was|should be} B.
"""
NOT_CHOSEN = """
{If|Unless} the car is old, the answer is B.
The answer is {either A or B|A or B|A and B|both A and B|A, B|A/B|A & B}.
{Neither A nor B|None of the above|All of the above|Both A and B|None of them|No option}.
{It could be|It might be|It may be|Perhaps|Maybe|Possibly} A{ or| or maybe|, or perhaps} B.
The {wrong|incorrect|least likely|worst} answer is B.
The answer is {not|never|anything but} B.
I {would never|do not|would not} {choose|pick|select} B.
{I don't think|I do not believe} the answer is B.
B is {not the answer|incorrect|wrong|not correct}.
{Vitamin|Angle|Bus|Plan|Room|Gate} B is {the right one|correct|the best}.
{Is it|Could it be|Should it be} B?
"""
COUNTED = """
{There are|I see|I can see|I count|It has|They have|We have|It shows} 3 dogs.
{The answer is|Answer:|The total is|The number is|The count is|In total,|The final value is:} 3
{about|approximately|around|roughly|exactly|only|just} 3
There are {about|approximately|around|roughly|exactly|only|just} 3 dogs in the picture.
{The sign says|The sign reads|The display shows|The value is|The result equals|x =} 3.
{Therefore|So|Thus|Hence}, there are 3 dogs.
"""
NOT_COUNTED = """
{at least|at most|more than|less than|fewer than|over|under|up to|nearly|almost} 3
{The|These|Those|All|His|Her|Their} 3 dogs are brown.
{He was born after|It was before|It is next to the|The bus has been late since} 3.
The man {on bench|in room|with shirt|at gate} 3 is tall.
{maybe|perhaps|possibly|either 2 or|between 2 and} 3
"""


def wordings(table: str) -> Iterator[str]:
    """Expand the choices of every template."""
    for line in table.strip().split("\n"):
        parts = [part.split("|") for part in line.replace("{", "\0").replace("}", "\0").split("\0")]
        for chosen in product(*(parts if "{" in line else [[line]])):
            yield "".join(word for word in chosen if word != "*")


def by_yes_no(output: str) -> Answer:
    return yes_no(output)


def by_choice(output: str) -> Answer:
    return choice(output, COLOURS)


def by_count(output: str) -> Answer:
    return short(output, "3")


@pytest.mark.parametrize(
    ("read", "table", "due"),
    [
        pytest.param(by_yes_no, YES, "yes", id="yes"),
        pytest.param(by_yes_no, NO, "no", id="no"),
        pytest.param(by_yes_no, NO_ANSWER, None, id="no answer to yes or no"),
        pytest.param(by_choice, NO_ANSWER, None, id="no answer to a choice"),
        pytest.param(by_count, NO_ANSWER, None, id="no answer to a count"),
        pytest.param(by_choice, CHOSEN, "B", id="chosen"),
        pytest.param(by_choice, NOT_CHOSEN, None, id="not chosen"),
        pytest.param(by_count, COUNTED, True, id="counted"),
        pytest.param(by_count, NOT_COUNTED, None, id="not counted"),
    ],
)
def test_every_wording_is_read_alike(read: object, table: str, due: object) -> None:
    assert callable(read)
    outputs = list(wordings(table))
    assert len(outputs) > 20
    assert [output for output in outputs if read(output).value != due] == []  # type: ignore[attr-defined]
