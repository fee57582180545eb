"""The benchmarks as tasks of lmms-eval, with the scoring of this package."""
