"""What a computation needs of its machine."""
