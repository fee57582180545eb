"""Pages and cards: the reports a reader opens."""
