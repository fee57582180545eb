"""Parsers of a model's answer: the chosen option, yes or no, or whether it matches a reference."""

from bas_opd.answers.answer import PARSER_VERSION, Answer
from bas_opd.answers.choice import choice
from bas_opd.answers.grading import AnswerKey, answer_key, ends_with, grade
from bas_opd.answers.short import short
from bas_opd.answers.yes_no import yes_no

__all__ = [
    "PARSER_VERSION",
    "Answer",
    "AnswerKey",
    "answer_key",
    "choice",
    "ends_with",
    "grade",
    "short",
    "yes_no",
]
