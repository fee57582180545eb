"""Prepared sets: their records, their pictures, their order, and how they are made."""
