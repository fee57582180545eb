"""The tables of this project, made again from their configurations."""
