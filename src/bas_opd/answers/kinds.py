"""Words that exclude one another: what is one colour, side, shape or animal is no other."""

from __future__ import annotations

_QUALITIES = (
    "red,crimson,红色 orange,橙色 yellow,gold,golden,黄色 green,绿色 blue,蓝色 purple,violet,紫色"
    " pink,粉色 brown,棕色 black,黑色 white,白色 gray,grey,silver,灰色",
    "left,左边,左侧 right,右边,右侧",
    "top bottom",
    "front back",
    "up down",
    "open closed",
    "on off",
    "yes no",
    "true false",
    "male,man,men,boy female,woman,women,girl",
    "north south east west northeast northwest southeast southwest",
    "monday tuesday wednesday thursday friday saturday sunday",
    "january february march april may june july august september october november december",
    "circle,circular,round,oval square rectangle,rectangular triangle,triangular hexagon"
    " pentagon octagon star heart",
    "wood,wooden metal,metallic,steel,iron plastic glass leather fabric,cloth,cotton"
    " paper,cardboard stone,marble rubber ceramic,porcelain",
    "sunny rainy snowy cloudy foggy",
    "light dark",
    "inside,indoors outside,outdoors",
    "sitting standing walking running lying",
)
_THINGS = (
    "summer winter spring autumn,fall",
    "dog,puppy cat,kitten horse,pony cow,cattle,bull,calf sheep,lamb goat pig"
    " bird,duck,goose,pigeon,seagull,parrot,eagle,owl,chicken elephant giraffe zebra bear"
    " lion tiger monkey rabbit fish deer",
    "car,taxi,cab,suv,sedan,van,minivan bus truck,lorry,pickup"
    " bicycle,bike,motorcycle,motorbike,scooter,moped train,tram airplane,plane,aircraft,jet"
    " boat,ship,sailboat,yacht",
    "apple banana grape,grapes pear strawberry lemon,lime watermelon pineapple mango peach cherry",
)
KIND_OF = {
    word: (kind, member)
    for kind, members in enumerate(_QUALITIES + _THINGS)
    for member, words in enumerate(members.split())
    for word in words.split(",")
}
"""Word -> its kind and which member of it the word names."""


def names_quality(word: str) -> bool:
    """Return whether a word can precede the noun it describes ("a red car"), as "cat" cannot."""
    return word in KIND_OF and KIND_OF[word][0] < len(_QUALITIES)
