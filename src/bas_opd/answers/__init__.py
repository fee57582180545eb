"""What a model's words commit to: an option, a yes or a no, or a reference met or missed."""

from bas_opd.answers.answer import PARSER_VERSION, Answer
from bas_opd.answers.choice import choice
from bas_opd.answers.short import short
from bas_opd.answers.yes_no import yes_no

__all__ = ["PARSER_VERSION", "Answer", "choice", "short", "yes_no"]
