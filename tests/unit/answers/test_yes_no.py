"""Whether an output says yes or no: outputs, and how a person reads them.

`?` is an output that a person would not settle on either; it is left to the judge. `-` is one that
gives no answer at all.
"""

# ruff: noqa: RUF001  (full-width and Cyrillic letters are what is tested)
from __future__ import annotations

import pytest

from bas_opd.answers import yes_no

CASES = {
    "refusals in other languages": """
No sé. => -
No se puede determinar. => -
Não sei. => -
Non lo so. => -
Keine Ahnung. => -
Nie wiem. => -
Не уверен. => -
不是很确定 => -
没有足够的信息 => -
看不清 => -
わかりません => -
判断できません => -
알 수 없습니다 => -
لا أعرف => -
لا يمكن تحديد ذلك => -
नहीं पता => -
không biết => -
tidak tahu => -
No clear answer => -
No response => -
Unknown => -
""",
    "words of other languages": """
Όχι => no
Ναι => yes
לא => no
כן => yes
ไม่ใช่ => no
ใช่ => yes
nee => no
没错 => yes
конечно => yes
конечно нет => no
لا يوجد كلب => no
答案是否 => no
图中是否有狗？没有。 => no
有没有狗？ => ?
是否有狗 => ?
""",
    "both, neither, or asked": """
Yes? => ?
no? => ?
yes yes no => ?
No, no, no. => no
Yes (or no) => ?
Yes, or maybe no => ?
Yes in part, no in part => ?
Yes, the answer is no. => ?
No, the answer is yes. => ?
"No" is written on the wall. => ?
"No" is my answer. => no
\\boxed{yes} or \\boxed{no} => ?
There is no shortage of dogs. => ?
There's no denying that there is a dog. => yes
The answer is yes, not no. => yes
No, that is incorrect. => no
A definite yes. => yes
Hard no. => no
By no means. => no
I'm going with yes. => yes
So the answer to whether he is holding one is yes. => yes
""",
    "a word": """
Yes => yes
No => no
yes => yes
no => no
YES => yes
NO => no
Yes. => yes
No. => no
Yes! => yes
"Yes" => yes
'No' => no
**Yes** => yes
**No**. => no
*yes* => yes
`no` => no
# Yes => yes
- No => no
(Yes) => yes
 yes  => yes
Ｙｅｓ => yes
Yes\\n => yes
Yes<|im_end|> => yes
Yep => yes
Yeah. => yes
Yup! => yes
Nope => no
Nope. => no
Nah => no
Absolutely => yes
Absolutely. => yes
Absolutely not. => no
Definitely => yes
Definitely not => no
Certainly. => yes
Certainly not. => no
Of course. => yes
Of course not. => no
Correct => yes
Correct. => yes
That's correct. => yes
That is right. => yes
Incorrect. => no
True => yes
False => no
true => yes
false => no
Affirmative. => yes
Negative. => no
Indeed. => yes
Not really. => no
Not at all. => no
I think so. => yes
I believe so. => yes
I don't think so. => no
Probably yes. => yes
Probably not. => no
Likely yes => yes
Most likely not. => no
It is. => yes
It isn't. => no
It does. => yes
It does not. => no
There is. => yes
There isn't. => no
There are not. => no
Never. => no
Sure. => yes
""",
    "a word and more": """
Yes, there is a dog in the image. => yes
No, there is no dog in the image. => no
No, there isn't a dog in the image. => no
No, there are no dogs. => no
No, there is a cat, not a dog. => no
No, there is only a cat in the image. => no
No, it is a cat. => no
Yes, it is. => yes
Yes, the man is wearing a hat. => yes
Yes there is. => yes
No there is not. => no
Yes - a dog is lying on the sofa. => yes
Yes; two of them. => yes
Yes\\nThere is a dog. => yes
Yes, there is a person who is not wearing a helmet. => yes
Yes, there is a dog, but it isn't on the chair. => yes
Yes, I can see a dog. => yes
No, I don't see a dog. => no
No, I do not see any dog in the picture. => no
No. The image does not contain a dog. => no
No dog is visible. => no
No dogs. => no
No visible dogs in the image. => no
Yes, definitely. => yes
Yes, yes. => yes
No, no. => no
No, not at all. => no
No, it does not. => no
No, the dog is not visible. => no
Absolutely, there is a dog. => yes
Correct, there is a dog. => yes
Well, yes. => yes
Okay, yes. => yes
I'd say yes. => yes
I would say no. => no
**Yes**, there is a dog. => yes
Yes, there is a dog in the image. The dog is brown and lies on the floor. => yes
No, there is no dog in the image. The image shows a cat on a sofa. => no
No doubt there is a dog. => yes
Yes, there is a dog in the => yes
""",
    "an announced answer": """
Answer: Yes => yes
Answer: No => no
Answer: yes. => yes
**Answer:** No => no
The answer is yes. => yes
The answer is no. => no
The answer is: Yes => yes
The answer is "no". => no
The answer is **Yes**. => yes
The correct answer is no. => no
The answer to the question is yes. => yes
Final answer: No => no
Final Answer\\nYes => yes
So the answer is yes. => yes
Therefore, the answer is no. => no
So, no. => no
Therefore, yes. => yes
Looking at the image I see a sofa and a lamp. The answer is no. => no
There is a cat on the sofa. The animal is not a dog. So the answer is no. => no
There is no collar, but there is an animal. The answer is yes. => yes
I see no leash, however a dog is present. So the answer is yes. => yes
The image shows a sofa.\\n\\nNo => no
The image shows a sofa and a dog.\\n\\nYes. => yes
Let me look. There is a sofa. There is a dog on it. Yes. => yes
My answer is no. => no
It's a yes from me. => yes
I'd have to say no. => no
That would be a no. => no
The answer isn't no; it's yes. => yes
I can see why you'd think so, but no. => no
The answer is a clear yes. => yes
Conclusion: No => no
So, yes, it seems. The answer is no. => no
""",
    "set apart": """
\\boxed{Yes} => yes
\\boxed{No} => no
\\boxed{\\text{yes}} => yes
The answer is $\\boxed{\\text{No}}$. => no
<answer>Yes</answer> => yes
<answer>no</answer> => no
<answer>No, there is no dog.</answer> => no
<answer>Yes => yes
{"answer": "yes"} => yes
{"answer": "No"} => no
{"answer": true} => yes
{"answer": false} => no
{"reason": "There is no leash", "answer": "yes"} => yes
```json\\n{"answer": "no"}\\n``` => no
<|begin_of_box|>No<|end_of_box|> => no
<answer></answer> => -
{"answer": ""} => -
{"answer": "unknown"} => -
\\boxed{Yes} and \\boxed{No} => ?
""",
    "thoughts": """
<think>Is there a dog? Yes, maybe.</think>No => no
<think>no</think>\\n\\nYes => yes
<think>\\n\\n</think>\\n\\nNo. => no
there might be one</think>Yes => yes
<think>Yes => -
<think>Yes, there is a dog. => -
<think>Yes</think> => -
""",
    "what there is": """
There is a dog in the image. => yes
There are two dogs in the picture. => yes
There is a dog => yes
There are several people. => yes
I can see a dog. => yes
I see a dog on the sofa. => yes
A dog is visible in the image. => yes
The dog is visible. => yes
The image does contain a dog. => yes
There is indeed a dog. => yes
There is no dog => no
There is no dog. => no
There are no dogs in the image. => no
There are no visible dogs. => no
There isn't a dog. => no
There aren't any dogs. => no
There's no dog here. => no
I don't see a dog. => no
I do not see any dogs in this image. => no
I can't see a dog. => no
I cannot see any dog in the image. => no
The image does not contain a dog. => no
The image doesn't show a dog. => no
The dog is not visible. => no
It is not a dog. => no
It's not visible in the image; none is. => ?
A dog is not visible in the image. => no
No dog can be seen. => no
There does not appear to be a dog. => no
There is no dog in the image. The image shows a cat. => no
No one is wearing a hat. => no
None. => no
Nothing. => no
There appears to be a dog. => yes
There seems to be no dog. => no
There are zero dogs. => no
There are dogs in the field. => yes
There are probably dogs. => ?
It looks like there is a dog. => yes
It is clear that there is a dog. => yes
I can confirm there is no dog. => no
On the left, there is a dog. => yes
A dog can be seen. => yes
A dog cannot be seen anywhere. => no
Dogs are visible in the background. => yes
The dog is hardly visible. => ?
I found a dog. => yes
I looked for a dog but found none. => no
I was unable to find any dog. => no
I have not seen a dog. => no
The scene is devoid of dogs. => no
The image contains a dog. => yes
The image contains no dog. => no
The caption says there is no dog. => ?
There are no animals other than a dog. => ?
The image shows a kitchen with a sink. There is no dog. => no
I see a bench, a tree, and a bicycle. I do not see a dog. => no
There is a dog. There is no cat. => ?
The presence of a dog is evident. => yes
No one could deny that there is a dog. => yes
It does indeed. => yes
She doesn't. => no
It appears so. => yes
It appears not. => no
""",
    "neither or both": """
Yes and no. => ?
Yes or no => ?
Yes/No => ?
Yes, no => ?
Yes. No. => ?
yes no => ?
Yes, there isn't. => ?
Yes, there is no dog. => ?
Yes, it is not. => ?
Yes, I don't see a dog. => ?
not yes => ?
The answer is not yes. => ?
The answer is not no. => ?
Maybe. => ?
Perhaps. => ?
Possibly. => ?
It might be a dog. => ?
It depends. => ?
The image shows a man on a bench. => ?
A man is sitting on a bench. => ?
The man is holding a cup of coffee. => ?
dog => ?
brown => ?
3 => ?
It is not true that there is no dog. => ?
There is a cat, but there is no dog. => ?
There is a dog, but no cat. => ?
Neither yes nor no. => ?
Noah => ?
Yesterday => ?
North => ?
Nothing but a dog is there, not a cat. => ?
The answer is yes and no. => ?
Right side => ?
It isn't impossible. => ?
Hmm. => ?
Either yes or no. => ?
Yes\\nNo => ?
""",
    "changes of mind": """
Yes... wait, no. => no
No. Wait, actually yes. => yes
Yes. Actually, no, there is no dog. => no
No, wait, yes. => yes
No, wait, there is a dog. => yes
Yes. On closer inspection, there is no dog. => no
The answer is yes. Wait, the answer is no. => no
Yes. Hold on, let me look again. => ?
Yes. Wait. => ?
No... actually, yes, there is one. => yes
\\boxed{Yes} Wait, that is wrong. The answer is no. => no
""",
    "the question repeated": """
Is there a dog? Yes => yes
Is there a dog in the image? No => no
Is there a dog in the image?\\nNo, there is not. => no
Is there no dog? Yes => yes
Q: Is there a dog? A: No => no
Question: Is there a dog? Answer: Yes => yes
Is there a dog? Answer yes or no. Yes => yes
Please answer yes or no: No => no
Answer (yes or no): No => no
Yes or no? Yes => yes
""",
    "nothing said": """
 => -
   => -
\\n => -
The answer is => -
In the image, there is a man standing next to a table with a => -
Looking at the image, I can see that the => -
I cannot determine that. => -
I can't tell. => -
I'm sorry, I can't help with that. => -
I am unable to determine whether there is a dog. => -
It is not possible to say. => -
I don't know. => -
I'm not sure. => -
It is unclear. => -
I cannot see the image. => -
As an AI model I cannot view pictures. => -
There is not enough information to answer. => -
Sorry, I can't answer that. => -
I can't say yes or no. => -
无法确定 => -
我不知道 => -
The image is not available. => -
The image does not clearly show whether there is a dog. => -
I can neither confirm nor deny it. => -
Please provide an image. => -
Sorry, no image found. => -
Не знаю => -
""",
    "doubts overcome": """
I'm not sure, but yes. => yes
It's hard to tell, but no. => no
I'm not certain, but the answer is no. => no
I can't be sure, but there is a dog. => yes
""",
    "other languages": """
是 => yes
是的 => yes
是的，图中有一只狗。 => yes
否 => no
不是 => no
没有 => no
没有。 => no
不，图中没有狗。 => no
有 => yes
有狗 => yes
没有狗 => no
对 => yes
不对 => no
答案是：是 => yes
答案是否 => no
答案：否 => no
Да => yes
Да. => yes
Да, на картинке есть собака. => yes
Нет => no
Нет, собаки нет. => no
Ответ: да => yes
sí => yes
Sí, hay un perro. => yes
No, no hay ningún perro. => no
Oui => yes
Oui, il y a un chien. => yes
Non. => no
Ja => yes
Ja, es gibt einen Hund. => yes
Nein => no
Sim => yes
Não => no
はい => yes
いいえ => no
네 => yes
아니요 => no
نعم => yes
لا => no
हाँ => yes
图中有一只狗。 => yes
图中没有狗。 => no
可以看到一只狗。 => yes
回答：是 => yes
答：否 => no
正确 => yes
错误 => no
犬がいます。 => yes
犬はいません。 => no
있습니다 => yes
없습니다 => no
الإجابة: نعم => yes
Il n'y a pas de chien. => no
Es gibt keinen Hund. => no
Hay un perro. => yes
""",
}


def rows(table: str) -> list[tuple[str, str]]:
    """Read a table: one output a line, `\\n` for a new line in it, and its reading."""
    split = (line.rpartition("=>") for line in table.strip("\n").split("\n"))
    return [(said[:-1].replace("\\n", "\n"), due.strip()) for said, _, due in split]


ALL = [
    pytest.param(output, due, id=f"{name}: {output[:60]!r}")
    for name, table in CASES.items()
    for output, due in rows(table)
]


@pytest.mark.parametrize(("output", "due"), ALL)
def test_an_output_says_what_a_person_reads_in_it(output: str, due: str) -> None:
    answer = yes_no(output)
    assert {"deferred": "?", "none": "-"}.get(answer.status, answer.value) == due
    assert (answer.value is None) == (answer.status != "answered")
