"""A run: its loop, state, records, directory and checkpoints."""
