"""`python -m bas_opd` is `bas-opd`, as launchers such as torchrun need it."""

import sys


def main() -> None:
    """Run the command line. Ctrl-C while modules are imported ends it without a traceback."""
    try:
        from bas_opd.cli.main import app
    except KeyboardInterrupt:
        sys.exit(130)
    app(prog_name="bas-opd")


if __name__ == "__main__":
    main()
