"""`python -m bas_opd` is `bas-opd`, as launchers such as torchrun need it."""

from bas_opd.cli.main import app

if __name__ == "__main__":
    app(prog_name="bas-opd")
