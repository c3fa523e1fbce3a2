"""Conformance: what hardware of a target description must compute, as cases, and the runner that compares with them.

from octavo import conformance

conformance.write("my-npu.json", "cases")  # models, inputs, expected outputs
report = conformance.run("cases", lambda case, inputs: ...)  # any implementation
print(report.summary)
"""

from .case import Case
from .report import CaseResult, Report
from .runner import run
from .suite import Suite, write

__all__ = ["Case", "CaseResult", "Report", "Suite", "run", "write"]
