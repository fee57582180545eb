"""Training methods. The loop knows one by the seam in `methods.method` alone."""

from bas_opd.methods.bas_opd import BasOpd
from bas_opd.methods.dapo import Dapo
from bas_opd.methods.grpo import Grpo, GrpoSettings
from bas_opd.methods.method import Method, PatientPoll, Prompts
from bas_opd.methods.opsd import opsd
from bas_opd.methods.reward import RuleReward
from bas_opd.methods.sft import Sft

__all__ = [
    "BasOpd",
    "Dapo",
    "Grpo",
    "GrpoSettings",
    "Method",
    "PatientPoll",
    "Prompts",
    "RuleReward",
    "Sft",
    "opsd",
]
