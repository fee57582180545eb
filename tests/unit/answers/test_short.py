"""Whether an output gives the reference: outputs, references, and how a person judges.

`right` and `wrong` are judgements. `?` is a case for the judge; `-` an output without an answer.
"""

# ruff: noqa: RUF001  (full-width and Cyrillic letters are what is tested)
from __future__ import annotations

import pytest

from bas_opd.answers import short

CASES = {
    "spellings of one name": """
café | cafe | right
Zürich | Zurich | right
McDonalds | McDonald's | right
e-mail | email | right
hotdog | hot dog | right
ABC-123 | ABC 123 | right
The license plate reads ABC 123. | ABC123 | right
B.M.W. | BMW | right
blue, white | white and blue | right
12 3 | 123 | ?
5551234 | 555-1234 | ?
-7 | 7 | wrong
blue-ish | blue | ?
no table | notable | ?
""",
    "what differs in one word or figure": """
Room 12 | Room 13 | wrong
open 12 hours | Open 24 hours | wrong
ABC 124 | ABC 123 | wrong
B | A | wrong
bottom right | top left | wrong
dark blue | light blue | wrong
a red bus | yellow bus | wrong
standing | sitting | wrong
蓝色 | 红色 | wrong
42A | 42 | ?
42 | 42A | ?
1990s | 1990 | ?
2020-01-05 | 01/05/2020 | ?
""",
    "what is denied and what is said instead": """
It's Adidas, not Nike. | Nike | wrong
not red but blue | blue | right
not red but blue | red | wrong
The number is not 5, it is 6. | 6 | right
The number is not 5, it is 6. | 5 | wrong
It is not only red but blue. | red | ?
not dark red | red | ?
Let me count: 1, 2, 3, 4. There are 4. | 4 | right
Let me count: 1, 2, 3, 4. There are 4. | 3 | wrong
""",
    "measures": """
30 °C | 30 degrees Celsius | right
3 °C | 3 °F | wrong
3 degrees | 3 °C | ?
60 miles per hour | 60 mph | right
60 km/h | 60 mph | wrong
100 km | 100 km/h | ?
3 years | 3 months | wrong
1 year | 12 months | right
90 days | 3 months | ?
3 GB | 3 MB | wrong
1024 MB | 1 GB | ?
12€ | 12 euros | right
USD 12 | $12 | right
$12.50 | $12.05 | wrong
3.14 | 3.1416 | ?
3M | 3,000,000 | ?
十二 | 12 | right
二十个 | 20 | right
十二 | 2 | wrong
half past three | 3:30 | right
quarter to ten | 9:45 | right
nine o'clock | 9:00 | right
0:30 | 12:30 | wrong
12:30 | 12:30 am | ?
no 5 | 5 | ?
7 000 | 7 | ?
7 000 km | 7 km | ?
£5 | 5 pounds | ?
0:30 | 12:30 am | right
""",
    "words": """
red | red | right
Red | red | right
RED. | red | right
"red" | red | right
**red** | red | right
 red  | red | right
red | Red. | right
the red car | red car | right
A red car | the red car | right
It is red. | red | right
It's red. | red | right
The car is red. | red | right
The color of the car is red. | red | right
The man is wearing a red shirt. | red | right
blue | red | wrong
It is blue. | red | wrong
The car is blue. | red | wrong
dark red | red | ?
red and blue | red | ?
red or blue | red | ?
not red | red | wrong
It is not red. | red | wrong
The car isn't red. | red | wrong
It is not only red. | red | ?
The bench is made of wood. | wood | right
It looks like wood. | wood | right
It says STOP on the sign. | STOP | right
The black car is next to the white one. | white | ?
The bench is made of metal rather than wood. | metal | right
The bench is made of metal rather than wood. | wood | wrong
At first I thought it was red, but it is actually blue. | blue | right
At first I thought it was red, but it is actually blue. | red | wrong
white and red | red and white | right
red & white | red and white | right
red | red and white | ?
red, blue and white | red and white | ?
汽车是红色的。 | 红色 | right
The car is red. It is parked on the street. | red | right
The car is red. The bus is blue. | red | ?
reddish | red | ?
red | dark red | ?
gray | grey | right
left | left | right
On the left | left | right
right | left | wrong
It is on the right side. | left | wrong
dog | dog | right
a dog | dog | right
The animal is a dog. | dog | right
cat | dog | wrong
It is a cat. | dog | wrong
dogs | dog | ?
puppy | dog | ?
dog and cat | dog | ?
The dog is next to a cat. | dog | ?
The dog is next to a cat. | cat | ?
hotdog | dog | ?
sofa | couch | ?
person | man | ?
umbrella | umbrella | right
He is holding an umbrella | umbrella | ?
The object is an umbrella. | umbrella | right
The answer is umbrella. | umbrella | right
The answer is an umbrella | umbrella | right
Answer: umbrella | umbrella | right
Answer: Umbrella. | umbrella | right
Final answer: **umbrella** | umbrella | right
The correct answer is umbrella, because he holds one. | umbrella | right
The answer is not umbrella. | umbrella | wrong
The answer is an umbrella or a cane. | umbrella | ?
Umbrella. The man holds it in his left hand. | umbrella | right
I see a man.\\n\\numbrella | umbrella | right
A man walks in the rain.\\nAnswer: umbrella | umbrella | right
ice cream | ice-cream | right
t-shirt | T-shirt | right
well known | well-known | right
Monday | monday | right
Tuesday | Monday | wrong
Yes | yes | right
No | yes | wrong
wooden | wood | ?
metal | wood | wrong
New York City | New York City | right
New York | New York City | ?
San Francisco | New York | ?
""",
    "quoted text": """
The sign says "STOP". | STOP | right
The sign says 'STOP'. | stop | right
"STOP" | STOP | right
The sign reads STOP. | STOP | right
It says "GO". | STOP | ?
The text on the sign is "Main Street". | Main Street | right
The text is “Main Street”. | main street | right
The word "STOP" is written on the sign. | STOP | right
It says "STOP" and "GO". | STOP | ?
It does not say "STOP". | STOP | ?
STOP AHEAD | STOP | ?
The number plate is AB12 CDE. | AB12 CDE | right
AB12CDF | AB12CDE | wrong
A12 | A13 | wrong
A-12 | A12 | right
007 | 007 | right
7 | 007 | ?
""",
    "numbers": """
3 | 3 | right
three | 3 | right
Three. | 3 | right
3 | three | right
3.0 | 3 | right
3.00 | 3 | right
+3 | 3 | right
-3 | 3 | wrong
4 | 3 | wrong
four | 3 | wrong
13 | 3 | wrong
30 | 3 | wrong
3.5 | 3 | wrong
There are 3 dogs. | 3 | right
There are three dogs. | 3 | right
There are three. | 3 | right
I can see 3 people. | 3 | right
I count three. | 3 | right
There are 4 dogs. | 3 | wrong
There are four dogs in the image. | 3 | wrong
3 dogs | 3 | right
3 | 3 dogs | right
three dogs | 3 dogs | right
4 dogs | 3 dogs | wrong
3 cats | 3 dogs | ?
The answer is 3. | 3 | right
The answer is three. | 3 | right
The answer is 4. | 3 | wrong
Answer: 3 | 3 | right
\\boxed{3} | 3 | right
\\boxed{4} | 3 | wrong
{"answer": 3} | 3 | right
{"answer": "three"} | 3 | right
{"answer": 4} | 3 | wrong
<answer>3</answer> | 3 | right
There are 2 cats and 1 dog, 3 animals in total. | 3 | ?
2 or 3 | 3 | ?
3-4 | 3 | ?
3 to 4 | 3 | ?
3-4 | 3-4 | right
3 to 4 | 3-4 | right
3–4 | 3-4 | right
at least 3 | 3 | ?
more than 3 | 3 | ?
fewer than 3 | 3 | ?
about 3 | 3 | right
approximately 3 | 3 | right
exactly 3 | 3 | right
not 3 | 3 | wrong
2½ | 2.5 | right
I count 5 + 2 = 7 birds. | 7 | right
5 on the left and 2 on the right, for a total of 7. | 7 | right
5 on the left and 2 on the right, for a total of 7. | 5 | wrong
2 dogs, 1 cat and 3 birds | 3 | ?
图中有五只鸟 | 5 | right
一共有8个人 | 8 | right
12:30 PM | 12:30 | right
12:30 | 12:30 PM | ?
There are not 3 dogs. | 3 | ?
1,000 | 1000 | right
1000 | 1,000 | right
1 000 | 1000 | right
1.000 | 1000 | ?
one thousand | 1000 | right
a thousand | 1000 | right
twenty-one | 21 | right
twenty one | 21 | right
two hundred and five | 205 | right
21 | twenty-two | wrong
a dozen | 12 | right
two dozen | 24 | right
5 million | 5000000 | right
zero | 0 | right
none | 0 | right
There are no dogs. | 0 | right
There are no dogs. | 3 | wrong
0 | 3 | wrong
2/3 | two-thirds | right
two thirds | 2/3 | right
1/2 | 0.5 | right
half | 1/2 | right
½ | 0.5 | right
one and a half | 1.5 | right
1 1/2 | 1.5 | right
\\frac{2}{3} | 2/3 | right
0.67 | 2/3 | ?
1/3 | 2/3 | wrong
third | 3 | ?
3rd | third | right
third | 3rd | right
fourth | 3rd | wrong
the one on the left | 1 | ?
一 | 1 | right
三个 | 3 | right
３ | 3 | right
答案是3 | 3 | right
答案：4 | 3 | wrong
""",
    "units": """
3 cm | 3 | right
3cm | 3 cm | right
3 cm | 3cm | right
3 centimeters | 3 cm | right
three centimetres | 3 cm | right
3 | 3 cm | ?
3 m | 3 cm | wrong
300 cm | 3 m | right
4 cm | 3 cm | wrong
3 kg | 3 cm | wrong
1000 g | 1 kg | right
60 minutes | 1 hour | right
2 hours | 1 hour | wrong
50% | 50% | right
50 percent | 50% | right
50 % | 50% | right
fifty percent | 50% | right
60% | 50% | wrong
50 | 50% | ?
0.5 | 50% | ?
50% | 50 | ?
$3 | 3 | right
$3 | 3 dollars | right
$3.50 | $3.50 | right
$4.50 | $3.50 | wrong
25°C | 25 °C | right
25 degrees | 25° | right
The height is 3 cm. | 3 cm | right
The answer is 3 cm. | 3 cm | right
The speed limit is 50. | 50 | right
50 km | 50 km | right
50 km/h | 50 km/h | right
60 km/h | 50 km/h | wrong
""",
    "dates and times": """
March 5, 2020 | March 5, 2020 | right
5 March 2020 | March 5, 2020 | right
5th of March 2020 | March 5, 2020 | right
2020-03-05 | March 5, 2020 | right
March 6, 2020 | March 5, 2020 | wrong
5 March 2021 | March 5, 2020 | wrong
March 5 | March 5, 2020 | ?
10:30 | 10:30 | right
10:30 AM | 10:30 am | right
10:30 a.m. | 10:30 AM | right
10:30 | 10:30 AM | ?
10:45 | 10:30 | wrong
10:30 PM | 10:30 AM | wrong
The clock shows 10:30. | 10:30 | right
1998 | 1998 | right
1999 | 1998 | wrong
It was built in 1998. | 1998 | right
""",
    "thoughts and changes of mind": """
<think>Two? No, three.</think>3 | 3 | right
<think>3</think>4 | 3 | wrong
<think>3 | 3 | -
there are two</think>3 | 3 | right
3... wait, actually 4 | 4 | right
3... wait, actually 4 | 3 | wrong
red. No wait, blue. | red | wrong
red. No wait, blue. | blue | right
The answer is 3. Wait, let me check again. | 3 | ?
\\boxed{3} Wait, that is wrong. | 3 | ?
\\boxed{3} or \\boxed{4} | 3 | ?
How many dogs are there? 3 | 3 | right
How many dogs are there? There are 3 dogs. | 3 | right
Is it red? No, it is blue. | red | wrong
""",
    "nothing said": """
 | red | -
   | 3 | -
\\n | red | -
The answer is | 3 | -
The sign on the left side of the street appears to be a | red | -
I cannot determine the colour. | red | -
I can't tell. | 3 | -
I'm sorry, I can't help with that. | red | -
I don't know. | 3 | -
I am unable to read the text. | STOP | -
It is not possible to determine whether the car is red. | red | -
The text is too blurry to read. | STOP | -
无法确定 | 3 | -
\\boxed{} | 3 | -
<answer></answer> | red | -
I'm not sure, but it is red. | red | right
It is hard to tell, but I count 3. | 3 | right
""",
    "other words than the reference's": """
The man walks across the street with his dog. | crossing the road | ?
A vehicle | car | ?
It looks like a bird of some kind, with long legs. | heron | ?
The capital of France | Paris | ?
Paris, France | Paris | ?
The Eiffel Tower in Paris | Eiffel Tower | ?
an apple | apples | ?
Coca Cola | Coca-Cola | right
red | | ?
""",
}


def rows(table: str) -> list[tuple[str, str, str]]:
    """Read a table: one output a line, `\\n` for a new line in it, its reference, its judgement."""
    found = []
    for line in table.strip("\n").split("\n"):
        output, reference, due = line.rsplit("|", 2)
        found.append((output[:-1].replace("\\n", "\n"), reference.strip(), due.strip()))
    return found


ALL = [
    pytest.param(output, reference, due, id=f"{name}: {output[:60]!r} for {reference!r}")
    for name, table in CASES.items()
    for output, reference, due in rows(table)
]


@pytest.mark.parametrize(("output", "reference", "due"), ALL)
def test_an_output_is_judged_as_a_person_judges_it(output: str, reference: str, due: str) -> None:
    answer = short(output, reference)
    verdict = {True: "right", False: "wrong", None: ""}[answer.value]
    assert {"deferred": "?", "none": "-"}.get(answer.status, verdict) == due
    assert (answer.value is None) == (answer.status != "answered")
