"""How well a model answers: its greedy responses, graded against known answers."""

from bas_opd.evaluate.runner import Graded, Posed, answer, evaluate, pose
from bas_opd.evaluate.score import Accuracy, Share, accuracy

__all__ = ["Accuracy", "Graded", "Posed", "Share", "accuracy", "answer", "evaluate", "pose"]
