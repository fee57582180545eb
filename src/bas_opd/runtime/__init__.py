"""What surrounds the training: its records and its console."""
