"""What a run over conformance cases found, as text, JUnit XML and one HTML page. It compares nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from html import escape
from xml.sax.saxutils import quoteattr

from .diagnosis import Difference


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseResult:
    """One case.

    Parameters
    ----------
    name, op, checks
        Of the case.
    problem
        What is wrong in one line; "" where it passed.
    difference
        The first value that differs, where the result has the right shape and dtype.
    """

    name: str
    op: str
    checks: str
    problem: str = ""
    difference: Difference | None = None

    @property
    def passed(self) -> bool:
        """Whether every value is as expected."""
        return not self.problem


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """All cases of a run, in the order of the index.

    Parameters
    ----------
    target
        Name of the description.
    not_covered
        What of it no case covers, in words.
    """

    target: str
    results: tuple[CaseResult, ...]
    not_covered: tuple[str, ...] = ()

    @property
    def failed(self) -> tuple[CaseResult, ...]:
        """The cases that failed."""
        return tuple(result for result in self.results if not result.passed)

    @property
    def passed(self) -> bool:
        """Whether all cases passed."""
        return not self.failed

    @property
    def summary(self) -> str:
        """One line for each case that failed, then the numbers by op and of all."""
        lines = [f"FAILED {result.name}: {result.problem}" for result in self.failed]
        total, failed = (Counter(result.op for result in each) for each in (self.results, self.failed))
        lines += [f"{op}: {count - failed[op]} of {count} cases passed" for op, count in total.items()]
        lines += [f"not covered: {text}" for text in self.not_covered]
        return "\n".join([*lines, f"{self.target}: {len(self.results) - len(self.failed)} of {len(self.results)} cases passed"])

    @property
    def faults(self) -> dict[str, int]:
        """What failures look like, and how many cases do; the commonest first. Those that gave no values have their own text."""
        return dict(Counter(_kind(result) for result in self.failed).most_common())

    def junit(self) -> str:
        """Return JUnit XML."""
        counts = f'tests="{len(self.results)}" failures="{len(self.failed)}" errors="0"'
        cases = "".join(map(_junit_case, self.results))
        suite = f"<testsuite name={quoteattr(f'octavo conformance {self.target}')} {counts}>\n{cases}</testsuite>\n"
        return f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites {counts}>\n{suite}</testsuites>\n'

    def html(self) -> str:
        """Return one page that needs no other file and no script."""
        rows = "".join(map(_html_row, sorted(self.results, key=lambda result: result.passed)))
        left = "".join(f"<li>{escape(text)}</li>" for text in self.not_covered)
        faults = "".join(f"<li>{count} of them: {escape(text)}</li>" for text, count in self.faults.items())
        numbers = f"{len(self.results) - len(self.failed)} of {len(self.results)} cases passed"
        title = f"Conformance of {escape(self.target)}"
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style></head>\n'
            f"<body><h1>{title}</h1>\n<p>{numbers}.</p>\n"
            + (f"<p>The {len(self.failed)} that failed look like this:</p><ul>{faults}</ul>\n" if faults else "")
            + (f"<p>Not covered:</p><ul>{left}</ul>\n" if left else "")
            + "<table><thead><tr><th>result</th><th>case</th><th>checks</th><th>what is wrong</th></tr></thead>\n"
            + f"<tbody>\n{rows}</tbody></table></body></html>\n"
        )


_STYLE = (
    "body{font:15px/1.4 sans-serif;margin:2em;max-width:100em}table{border-collapse:collapse}"
    "th,td{border:1px solid #bbb;padding:.3em .6em;text-align:left;vertical-align:top}"
    ".failed td:first-child{background:#c0392b;color:#fff}.passed td:first-child{background:#dff0d8}"
    "td:nth-child(2){font-family:monospace}"
)


def _kind(result: CaseResult) -> str:
    return result.difference.fault if result.difference else result.problem


def _junit_case(result: CaseResult) -> str:
    head = f"<testcase classname={quoteattr(result.op)} name={quoteattr(result.name)}"
    if result.passed:
        return f"{head}/>\n"
    text = escape(f"{result.checks}\n{result.problem}", quote=False)
    return f"{head}><failure message={quoteattr(_kind(result))}>{text}</failure></testcase>\n"


def _html_row(result: CaseResult) -> str:
    said = "passed" if result.passed else "failed"
    cells = (said, result.name, result.checks, result.problem)
    return f'<tr class="{said}">{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>\n'
