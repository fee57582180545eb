"""Which option an output chooses: outputs, and how a person reads them.

A letter is a reading. `?` is an output that a person would not settle on one option; it is left to
the judge. `-` is one that gives no answer at all.
"""

# ruff: noqa: RUF001  (full-width and Cyrillic letters are what is tested)
from __future__ import annotations

import pytest

from bas_opd.answers import choice

COLOURS = {"A": "red", "B": "blue", "C": "green", "D": "yellow"}
NESTED = {"A": "red", "B": "dark red", "C": "light blue", "D": "blue"}
COUNTS = {"A": "1", "B": "2", "C": "3", "D": "4"}
SIDES = {
    "A": "The dog is on the left side of the car.",
    "B": "The dog is on the right side of the car.",
}
THINGS = {"A": "a cat", "B": "an apple", "C": "a cotton bag", "D": "The Eiffel Tower"}
POLAR = {"A": "Yes", "B": "No"}
OPEN = {"A": "cat", "B": "dog", "C": "None of the above", "D": "Cannot be determined"}
SIX = {"A": "chair", "B": "table", "C": "lamp", "D": "sofa", "E": "bed", "F": "desk"}
NAMES = {"A": "B", "B": "C", "C": "A", "D": "D"}
SIGNS = {"A": "X", "B": "Y", "C": "Z"}
PAIRS = {"A": "red car", "B": "blue car"}
YEARS = {"A": "1998", "B": "2004", "C": "2012", "D": "1,500"}

CASES = {
    "letters weighed, asked or put in a row": (COLOURS, """
B? C? => ?
A → B => ?
B, possibly C => ?
Blue → B => B
Is it A? => ?
Should I choose A? => ?
I need to look at option B => ?
To answer this question, we compare A => ?
A red flag is on the blue car. => ?
A red => A
The color is blue, which is option C. => ?
The color is blue, which is option B. => B
Blue, I believe. => B
应为D => D
\\boxed{A} or \\boxed{B} => ?
"""),
    "right as a word of assent": ({"A": "left", "B": "right"}, """
That's right. => ?
All right, let me see. => ?
You're right, it's on the left. => A
It is on the right. => B
"""),
    "letters alone": (COLOURS, """
C => C
C. => C
C) => C
(C) => C
[C] => C
c => C
c. => C
(c) => C
c) => C
"C" => C
'C' => C
 C  => C
C! => C
C: => C
C, => C
Ｃ => C
（Ｂ） => B
Ⓑ => B
**C** => C
*C* => C
`C` => C
__C__ => C
**(C)** => C
**C.** => C
# C => C
- C => C
> C => C
$C$ => C
A => A
a => A
(a) => A
A. => A
D\\n => D
Option C => C
option c => C
Choice B => B
Letter D => D
Answer C => C
C<|im_end|> => C
C</s> => C
<|begin_of_box|>C<|end_of_box|> => C
"""),
    "letters with their texts": (COLOURS, """
C. green => C
C) green => C
(C) green => C
C: green => C
C - green => C
C – green => C
C green => C
A red => A
A. red => A
**C. green** => C
**C**. green => C
**C** green => C
C. Green. => C
(C) The green one => C
Answer: C. green => C
Answer: (C) green => C
The answer is C. green => C
The answer is A red => A
[C] green => C
C, green => C
C = green => C
C\\ngreen => C
C.\\n\\ngreen => C
"C. green" => C
"""),
    "letters beside another's text": (COLOURS, """
C. blue => ?
Answer: C. red => ?
(C) yellow => ?
The answer is C, red. => ?
A. blue => ?
**D. green** => ?
"""),
    "statements": (COLOURS, """
The answer is C => C
The answer is C. => C
The answer is: C => C
The correct answer is: **C** => C
The correct answer is **C**. => C
The correct answer is (C). => C
The correct option is C. => C
The correct choice is option C. => C
The right answer is C, because the car is green. => C
The best answer is C. => C
The answer to the question is C. => C
The answer to the question about the car is C. => C
The answer should be C. => C
The answer would be B. => B
The answer must be D. => D
So the answer is A. => A
Therefore, the answer is A. => A
Thus, the correct answer is B. => B
Hence the answer is option D. => D
Answer: C => C
Answer:C => C
answer: C => C
ANSWER: C => C
Answer - C => C
Answer = C => C
Answer: b => B
answer: a => A
The answer is b. => B
The answer is (b). => B
The answer is (b) => B
The correct answer is "C". => C
The correct answer is 'C'. => C
Final answer: C => C
Final Answer: **C** => C
### Final Answer\\nC => C
**Final Answer**\\n\\n**C** => C
**Answer:** C => C
**Answer**: C => C
**Answer: C** => C
My answer is C. => C
My choice is C. => C
I choose C. => C
I would choose option C. => C
I'd go with C. => C
I'll go with (C). => C
I will select B. => B
I pick D. => D
I think it's C. => C
I think the answer is C. => C
I believe the correct answer is B. => B
I would say C. => C
I select option B. => B
Going with B. => B
Choose B. => B
Option C is correct. => C
Option C is the correct answer. => C
C is correct. => C
C is the correct answer. => C
C is the right choice. => C
C is the answer. => C
(C) is correct. => C
A is correct. => A
Option A is the best choice. => A
Option B best describes the car. => B
It is C. => C
It's C. => C
It's option C. => C
It must be C. => C
This is option C. => C
This corresponds to option C. => C
The colour matches option B. => B
So, C. => C
Therefore, C. => C
Thus B. => B
Hence, (D). => D
So it's B. => B
Therefore it must be B. => B
In conclusion, the answer is D. => D
The colour of the car is B. => B
Looking at the image, the answer is C. => C
Based on the image, the answer is C. => C
Based on the image, C. => C
Based on the picture, the correct answer is (D). => D
Certainly! The answer is C. => C
Sure, the answer is B. => B
After careful analysis, I conclude that the answer is C. => C
The final answer is $C$. => C
The answer is option (C). => C
The answer is choice C. => C
Correct answer: C => C
Correct option: D => D
The correct letter is C. => C
The answer is **C) green**. => C
The answer is likely C. => C
The answer is most likely C. => C
The answer is probably B. => B
The answer is definitely B. => B
The answer is clearly option A. => A
The answer is A because the car is red. => A
The answer is A, since it is red. => A
The answer is A as the car looks red. => A
The answer is A\\nThe car is red. => A
Given the options, D is the best match. => D
C ✅ => C
The answer might be B. => B
"""),
    "statements in words": (COLOURS, """
The answer is green. => C
The answer is green => C
Answer: green => C
The correct answer is blue. => B
The correct answer is "blue". => B
The answer is the green one. => C
The answer is clear: the car is green. => C
Final answer: yellow => D
I think it is green. => C
So the car is green. => C
Therefore, green. => C
The answer is black. => ?
The answer is purple. => ?
Answer: orange => ?
First I saw something red. The answer is purple. => ?
"""),
    "texts of options": (COLOURS, """
green => C
Green => C
GREEN. => C
"green" => C
**green** => C
It is green. => C
The car is green. => C
The car is green => C
The car in the picture is green. => C
The car appears to be green. => C
It's a green car. => C
The man is wearing a green shirt. => C
The car is green in color. => C
The color of the car is green. It is parked next to a tree. => C
Looking closely at the picture, I find the car. The car is green. => C
The green one. => C
the colour is yellow => D
There is a wall. The car is red. => A
"""),
    "texts that do not settle it": (COLOURS, """
The car is red and blue. => ?
red or blue => ?
Either red or green. => ?
The car is purple. => ?
It could be red or blue. => ?
There is a red house beside it. The car itself looks orange. => ?
The car is not red. => ?
It isn't green. => ?
It is neither red nor blue. => ?
redwood => ?
A car is parked on the street. => ?
The car is red and black. => ?
The car is black and red. => ?
A man is standing next to a building. => ?
I see a car. => ?
A nice picture. => ?
The car is blue-green. => ?
Infrared => ?
The picture shows a bus. => ?
Based on the image. => ?
Cotton. => ?
A => A
"""),
    "options discussed before one is chosen": (COLOURS, """
not A, so B => B
Not A but B. => B
It is not A, it is B. => B
It's not A. It's B. => B
A is wrong, so the answer is B. => B
A is incorrect. B is correct. => B
Option A is wrong. Option B is wrong. Option D is wrong. Option C is correct. => C
B, not A. => B
B rather than A. => B
The answer is B, not A. => B
The answer is not A but B. => B
The answer is not A. The answer is B. => B
The car is not red, it is blue. => B
The car is not red but blue. => B
The car is blue, not red. => B
The car is blue rather than red. => B
I can rule out A and D. Between B and C, the answer is C. => C
Option A says red, which is wrong. Option B says blue, which is right. So B. => B
It could be A or B, but the answer is B. => B
It might be A or B. I'd go with A. => A
A: red does not match. B: blue does not match. C: green matches the car. The answer is C. => C
- A: red, no\\n- B: blue, no\\n- C: green, yes\\n\\nAnswer: C => C
Let me check each option. A is not visible. B is not there. So the answer must be D. => D
Since A and B are both wrong and D is not visible, the answer is C. => C
C\\n\\nExplanation: A is red and does not fit, B is blue and does not fit. => C
C. The others (A, B, D) are wrong. => C
The answer is C. Options A and B are wrong. => C
Is it A? No. The answer is B. => B
Is the answer A? No, the answer is B. => B
If the answer is A the car must be red. => ?
I wonder whether the answer is A. => ?
If the answer were A the car would be red. The answer is B. => B
At first the answer seemed to be A, but the answer is D. => D
I don't think the answer is A. The answer is B. => B
We can eliminate A, B and D, leaving C. => C
None of A, B, or C is correct, so it must be D. => D
None of A, B and C are right. => ?
Neither A nor B is right; C is. => C
Between A and B, B is the better match. => B
The answer could be A or B, but I am leaning towards B. => B
The color in question matches option D the most. => D
That makes B the correct answer. => B
In the image, option B (blue) best describes the car, while option A (red) the truck. => B
Option A describes the truck, while option B describes the car. => ?
If the car were red, A would be correct; but it's blue, so B. => B
C would be right if the car were green. => ?
I'd pick C if the car were green, which it is not. => ?
Unless it is red, the answer is B. => ?
If I had to choose, B. => B
I would never pick A. => ?
The least likely answer is A. => ?
The opposite of A. => ?
Incorrect: A => ?
"""),
    "options with a verdict each": (COLOURS, """
A. red: incorrect\\nB. blue: correct\\nC. green: incorrect\\nD. yellow: incorrect => B
- A. red → No\\n- B. blue → Yes\\n- C. green → No\\n- D. yellow → No => B
| Option | Verdict |\\n|---|---|\\n| A | wrong |\\n| B | correct |\\n| C | wrong | => B
Option A: It is not red.\\nOption B: It is not blue.\\nOption C: It is green. This matches. => C
A: the shirt is not red. B: the shirt is blue, which matches. => B
Option A is wrong because it isn't red. Option C matches what we see. Option D is incorrect. => C
Given the above, option B holds. => B
B matches the picture while A and C do not. => B
A ✓ => A
A ✗ => ?
A ✓ B ✓ => ?
A fits, and B fits as well. => ?
Option A matches the truck. Option C matches the car. => ?
B. blue\\nC. green => ?
B. blue.\\n\\nA, C, and D are incorrect because those colours are not on the car. => B
选项B正确，其他选项错误。 => B
"""),
    "a text and its explanation": (COLOURS, """
**Blue** – the car next to the red truck. => B
Blue. The car is red. => ?
Blue - or maybe green => ?
Blue. Red. Green. => ?
The car appears to be blue in the image. The light may change how it looks. => B
The picture shows a red bus and a blue car. The question is about the car. The car is blue. => B
Q: What colour is it?\\nA: blue => B
"""),
    "letters that are names": (COLOURS, """
Vitamin D => ?
The sign says "A". => ?
Bus C is red. => A
"""),
    "corrections": (COLOURS, """
A... wait, actually C => C
A. Wait, no, C. => C
A, no wait, B. => B
The answer is A. Wait, the answer is C. => C
The answer is A. Actually, it's C. => C
The answer is A. Hold on, let me look again. The answer is D. => D
I said A, but on closer inspection the answer is B. => B
The answer is B. Correction: the answer is C. => C
A. Actually, B. => B
B - sorry, I mean C. => C
The answer is A. Wait, let me check again. => ?
The answer is A. Hmm, wait. => ?
\\boxed{A} Wait, that is wrong. The answer is \\boxed{B}. => B
\\boxed{A}. Wait, that's wrong. The answer is B. => B
The answer is C. Scratch that, the answer is A. => A
"""),
    "several at once": (COLOURS, """
A and B => ?
A or B => ?
A, B => ?
A/B => ?
A & B => ?
A, B, and C => ?
Both A and B => ?
Both A and B are correct. => ?
Either A or B. => ?
The answer is A and B. => ?
The answer is A or B. => ?
The answer is A, B. => ?
The answer is both A and C. => ?
The answer is either A or B. => ?
(A) and (B) => ?
(A), (B) => ?
A. red and B. blue => ?
Options A and C are correct. => ?
\\boxed{A} or \\boxed{B} => ?
\\boxed{A, B} => ?
\\boxed{A \\text{ and } B} => ?
{"answer": ["A", "B"]} => ?
AB => ?
A B C D => ?
It could be A. It could be B. => ?
A. red\\nB. blue\\nC. green\\nD. yellow => ?
(A) red (B) blue (C) green (D) yellow => ?
All of the above. => ?
All of them. => ?
"""),
    "the list repeated": (COLOURS, """
(A) red (B) blue (C) green (D) yellow\\nAnswer: C => C
A. red\\nB. blue\\nC. green\\nD. yellow\\n\\nThe answer is B. => B
What colour is the car? A. red B. blue C. green D. yellow\\nC => C
Options: A. red, B. blue, C. green, D. yellow. The car is green. => C
Which one? (A) red (B) blue (C) green (D) yellow\\n\\n(B) => B
Choices: A: red; B: blue; C: green; D: yellow\\nblue => B
"""),
    "set apart": (COLOURS, """
\\boxed{C} => C
$\\boxed{C}$ => C
\\boxed{\\text{C}} => C
\\boxed{\\textbf{(C)}} => C
\\boxed{\\text{C. green}} => C
\\boxed{green} => C
\\boxed{(C)} => C
\\boxed{C. green} => C
\\boxed{\\mathrm{C}} => C
The answer is \\boxed{C}. => C
The answer is $\\boxed{\\text{B}}$. => B
\\[ \\boxed{D} \\] => D
\\boxed{A} is my first idea, but finally \\boxed{B}. => B
<answer>C</answer> => C
<answer> C </answer> => C
<answer>C. green</answer> => C
<answer>green</answer> => C
<answer>The answer is C</answer> => C
<answer>\\boxed{C}</answer> => C
<ANSWER>B</ANSWER> => B
<answer>A</answer> and then <answer>B</answer> => B
<answer>C => C
A is wrong, B fits. <answer>B</answer> => B
{"answer": "C"} => C
{"answer": "C. green"} => C
{"answer": "green"} => C
{"answer": "(C)"} => C
{'answer': 'C'} => C
{"Answer": "C", "reason": "A is wrong"} => C
{"reason": "A is red and B is blue", "answer": "C"} => C
{"final_answer": "D"} => D
{"choice": "B"} => B
{"option": "B"} => B
{"selected_option": "B", "confidence": 0.9} => B
```json\\n{"answer": "C"}\\n``` => C
```json\\n{\\n  "answer": "B",\\n  "why": "It is blue."\\n}\\n``` => B
```\\nC\\n``` => C
{"answer": ["B"]} => B
{"answer": "purple"} => ?
{"answer": ""} => -
{"answer": "I cannot tell"} => -
\\boxed{} => -
<answer></answer> => -
\\boxed{F} => -
\\boxed{purple} => ?
\\boxed{C => ?
"""),
    "thoughts": (COLOURS, """
<think>It could be A.</think>B => B
<think>It could be A. The answer is A.</think>\\n\\nThe answer is B. => B
<think>\\n\\n</think>\\n\\nC => C
<think></think>(C) => C
so A or B...</think>C => C
<thinking>maybe A</thinking> C => C
<think>The answer is A => -
<think>The answer is A. => -
<think>A</think><think>B => -
<think>A</think> => -
<THINK>A</THINK>D => D
<think>a<think>b</think>c</think>D => D
B <think>or A?</think> => B
"""),
    "letters outside the options": (COLOURS, """
F => -
(F) => -
E. => -
The answer is F. => -
Answer: E => -
The answer is (G). => -
"""),
    "nothing said": (COLOURS, """
 => -
   => -
\\n\\n => -
... => ?
The answer is => -
The answer is a => -
The correct answer is: => -
The image shows a kitchen with a table, and on the table there are several things including a => -
Looking at the picture, we can see that the => -
Let me look at the options: => -
The red mug is on the table and the car is next to => -
I cannot determine the colour. => -
I can't determine the answer from the image. => -
I'm sorry, but I can't help with that. => -
I am unable to see the image. => -
It is not possible to determine the colour of the car. => -
I don't know. => -
Sorry, I cannot answer this question. => -
As an AI, I cannot view images. => -
The image does not provide enough information to tell the colour. => -
{"answer": null} => -
There is not enough information to decide whether it is red. => -
The colour cannot be determined. => -
It is unclear whether the car is red. => -
I'm not sure. => -
无法确定 => -
Не могу определить. => -
None of the above. => ?
None of the options are correct. => ?
None of these. => ?
"""),
    "doubts overcome": (COLOURS, """
I'm not sure, but the answer is C. => C
I cannot be certain, but I would say B. => B
I'm not sure, but it looks green. => C
It is hard to tell, but the car is blue. => B
Sorry for the confusion, the answer is C. => C
"""),
    "other languages": (COLOURS, """
答案是B => B
答案是 B。 => B
答案：C => C
正确答案是C。 => C
正确答案为（D） => D
选B => B
我选C => C
选择 C => C
选择C，因为车是绿色的。 => C
不选A => ?
选项B => B
所以答案是A。 => A
因此，选D。 => D
答案选C => C
B。因为车是蓝色的。 => B
A选项正确 => A
B是正确的 => B
選B => B
答案為C => C
答案是A或者B => ?
सही उत्तर B है => B
الإجابة هي D => D
La respuesta es C. => C
La respuesta correcta es B. => B
Respuesta: D => D
La réponse est C. => C
La bonne réponse est B. => B
Réponse : C => C
Die Antwort ist C. => C
Die richtige Antwort ist B. => B
Antwort: A => A
A resposta é C. => C
Ответ: C => C
Правильный ответ: B => B
正解はBです。 => B
答えはCです => C
정답은 C입니다. => C
Antwort: C. green => C
"""),
    "words that begin with a letter of the options": (COLOURS, """
Based on what I see, the answer is C. => C
Definitely C. => C
Clearly the answer is B. => B
As can be seen, D is correct. => D
A careful look shows that the answer is D. => D
A quick check: the answer is B. => B
Because it is green, C. => C
Vitamin C and vitamin D are not shown. => ?
Don't know. => -
Definitely. => ?
Car => ?
Based on the image, the man is holding a cup. => ?
Can you see it? => ?
I => -
I think so. => ?
"""),
    "nested texts": (NESTED, """
dark red => B
red => A
It is dark red. => B
The car is dark red. => B
The car is red. => A
The answer is dark red. => B
The answer is red. => A
light blue => C
The sky is light blue. => C
blue => D
B. dark red => B
A. red => A
B. red => ?
A. dark red => ?
It is blue, not light blue. => D
dark blue => D
"""),
    "numbers as options": (COUNTS, """
2 => B
two => B
Two. => B
B => B
B. 2 => B
B) two => B
(B) => B
There are 2 dogs. => B
There are two dogs in the picture. => B
I count 3 dogs. => C
The answer is 3. => C
The answer is three. => C
Answer: 4 => D
\\boxed{3} => C
\\boxed{C} => C
{"answer": 3} => C
{"answer": "three"} => C
3 dogs => C
There is one dog. => A
There is only 1 dog. => A
5 => ?
There are 5 dogs. => ?
There are five dogs. => ?
The answer is 7. => ?
There are 2 cats and 5 dogs. => ?
2 or 3 => ?
There are 12 dogs. => ?
There is a dog and there are 2 cats, 3 in total. => C
1.5 => ?
The one on the left. => ?
The answer is B. There are 2 of them, 1 on the left. => B
Between 2 and 4. => ?
2-4 => ?
Let me count: 1, 2, 3. There are 3 dogs. => C
1. 2. 3. => ?
There are 2 dogs, 1 cat and 3 birds. => ?
1 + 2 = 3 => C
The second one. => ?
There are at least 4. => ?
一共有3个 => C
"""),
    "amounts as options": ({"A": "10%", "B": "25%", "C": "50%"}, """
About 50 percent. => C
25% => B
25 kg => ?
between 25% and 50% => ?
"""),
    "directions as options": ({"A": "left", "B": "right", "C": "front", "D": "behind"}, """
Right behind the tree. => D
That's right, it is behind the house. => D
That's right, left. => ?
in front of it => C
Right. => B
"""),
    "texts with a letter": ({"A": "Plan B poster", "B": "Vitamin C", "C": "Type A"}, """
The bottle says Vitamin C. => B
Vitamin D => ?
Plan B => ?
"""),
    "texts told in other small words": (
        {"A": "A woman walking a dog in the park", "B": "A man riding a bicycle"}, """
A man is riding a bicycle. => B
A woman is walking her dog in a park. => A
A man is not riding a bicycle. => ?
A man riding a horse. => ?
"""),
    "comparisons that name both": ({"A": "the lamp", "B": "the bookshelf"}, """
Between the lamp and the bookshelf, the lamp is closer to the camera. => A
"""),
    "years as options": (YEARS, """
1998 => A
2004 => B
The sign says 2012. => C
1500 => D
It was built in 2004. => B
2005 => ?
"""),
    "sentences as options": (SIDES, """
A => A
left => A
right => B
The dog is on the left side of the car. => A
The dog is on the right side of the car => B
The dog is on the left side. => A
It is on the right. => B
On the left side of the car. => A
The dog is to the left of the car. => A
The dog is not on the left side of the car. => ?
The dog is on the right side of the car, not on the left. => B
The dog is in front of the car. => ?
A. The dog is on the left side of the car. => A
B. The dog is on the left side of the car. => ?
The answer is left. => A
The car is on the left side of the dog. => ?
The car is on the left of the dog, which means the dog is on the right side of the car. => B
The dog is on the left side of the image. => ?
A cat is left of the car. => ?
The house is on the left. => ?
"""),
    "articles in options": (THINGS, """
A => A
a cat => A
cat => A
A cat. => A
A cat is shown. => A
An apple => B
It is an apple. => B
A cotton bag. => C
cotton bag => C
The Eiffel Tower => D
It's the Eiffel Tower. => D
Eiffel Tower => D
A dog. => ?
It is a cat flap. => ?
It is a cat there. => A
The answer is a cat. => A
The answer is a dog. => ?
C. a cotton bag => C
A. a cat => A
"""),
    "yes and no as options": (POLAR, """
Yes => A
No => B
A => A
B. No => B
A. Yes => A
Yes, there is a dog. => A
No, there is not. => B
There is no dog in the picture. => B
There is a dog in the picture. => A
The answer is no. => B
The answer is yes. => A
Yes and no. => ?
B. Yes => ?
I can't tell. => -
"""),
    "options that give up": (OPEN, """
None of the above => C
None of the above. => C
C. None of the above => C
The answer is none of the above. => C
Cannot be determined => D
It cannot be determined. => D
D. Cannot be determined => D
The animal is a dog. => B
cat => A
"""),
    "six options": (SIX, """
E => E
F => F
F. desk => F
The answer is E. => E
the desk => F
(e) bed => E
G => -
I would choose F. => F
It is a sofa. => D
"""),
    "letters as options": (NAMES, """
(B) => B
Option A => A
B. C => B
A. B => A
D => D
D. D => D
"""),
    "other letters as options": (SIGNS, """
X => A
Z => C
The answer is Y. => B
The letter is Z. => C
B => B
(C) => C
B. Y => B
W => -
"""),
    "comparisons": (PAIRS, """
The red car is closer than the blue car. => A
The blue car is closer to the camera than the red car. => B
the red car => A
red => A
It's the blue one. => B
The red car and the blue car are equally close. => ?
The blue car, not the red car. => B
The red car is not closer than the blue car. => ?
The car is closer. => ?
The red car is closest, while the blue car is farther away. => A
"""),
}  # fmt: skip


def rows(table: str) -> list[tuple[str, str]]:
    """Read a table: one output a line, `\\n` for a new line in it, and its reading."""
    split = (line.rpartition("=>") for line in table.strip("\n").split("\n"))
    return [(said[:-1].replace("\\n", "\n"), due.strip()) for said, _, due in split]


ALL = [
    pytest.param(output, options, due, id=f"{name}: {output[:60]!r}")
    for name, (options, table) in CASES.items()
    for output, due in rows(table)
]


@pytest.mark.parametrize(("output", "options", "due"), ALL)
def test_an_output_chooses_what_a_person_reads_in_it(
    output: str, options: dict[str, str], due: str
) -> None:
    answer = choice(output, options)
    assert {"deferred": "?", "none": "-"}.get(answer.status, answer.value) == due
    assert (answer.value is None) == (answer.status != "answered")
