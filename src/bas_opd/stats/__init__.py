"""Intervals and resampling; needs no torch."""
