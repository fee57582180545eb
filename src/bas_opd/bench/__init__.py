"""How fast each phase of a step is on this machine, beside what a user would use instead."""
