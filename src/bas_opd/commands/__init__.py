"""What the commands of `bas-opd` do."""
