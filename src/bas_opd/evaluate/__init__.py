"""Evaluation: benchmarks, models that answer them, scoring by rule and by judge, and results."""
