"""Training methods. The loop knows one by the seam in `methods.method` alone."""

from bas_opd.methods.bas_opd import BasOpd
from bas_opd.methods.method import Method, Prompts

__all__ = ["BasOpd", "Method", "Prompts"]
