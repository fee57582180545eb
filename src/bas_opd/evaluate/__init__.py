"""How well a model answers: benchmarks, how their answers are read, and who decides the rest."""
