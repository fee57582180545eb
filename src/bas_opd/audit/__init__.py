"""Audits of a run: how much utility its selector captured, and the geometry of gradients."""
