"""What a person reads of finished runs: made from results and records alone, without torch."""
