"""Tests of the rule that durations do not depend on the wall clock, which can be set while a process runs.

The rule finds readings of `time.time`. Times from `datetime.now` are arguments of decisions and contents of rows, which a reviewer must
judge.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.architecture.test_rules import REPO, SOURCES

READINGS = {"time", "time_ns"}
ALLOWED = {
    "runtime/moments.py": "makes the moments from which durations are measured",
    "trainers/job/events.py": "the time of an event, which people read",
    "trainers/job/nemo/launcher.py": "the release subtracts from the wall clock; the property returns what makes this a duration",
    "router/line.py": "times of the counts of requests, which are compared with the times of traces",
    "router/app.py": "times of the counts of requests, which are compared with the times of traces",
    "router/call.py": "the start of a span",
    "router/counts/outcomes.py": "minutes of figures, which another process reads",
    "router/replica/control.py": "compared with the time of a file that an earlier process of the replica wrote",
    "router/traces/span_spool.py": "the order of files",
    "runtime/serving/line_server.py": "compared with times of files that other processes wrote",
    "flows/demo/users.py": "the time of a rating",
    "materializer/receive/spool.py": "the order of files",
    "local/serve/completions.py": "the field `created` of an answer",
    "k8s/gangs/submitter.py": "the calendar month of a cap, and the time of a submission",
    "k8s/gangs/reconciler.py": "the calendar month of a cap",
    "k8s/gangs/gang_informers.py": "compared with times of the API server",
    "flows/service/garbage.py": "compared with times of files that other processes wrote",
}
"""Module -> why it reads the wall clock. Durations use `time.monotonic` in a process, and `runtime/moments.py` across processes."""


def readings(path: Path) -> list[int]:
    """Return the numbers of the lines in which a module uses or imports `time.time` or `time.time_ns`."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr in READINGS and isinstance(node.value, ast.Name) and node.value.id == "time":
            found.append(node.lineno)
        if isinstance(node, ast.ImportFrom) and node.module == "time" and READINGS & {one.name for one in node.names}:
            found.append(node.lineno)
    return found


def test_the_wall_clock_is_read_only_where_a_reason_is_given() -> None:
    found = {str(path.relative_to(REPO)): lines for path in SOURCES if (lines := readings(path))}
    unexplained = {name: lines for name, lines in found.items() if name not in ALLOWED}
    assert not unexplained, "use time.monotonic or ratchet.runtime.moments for a duration, or state the reason in ALLOWED"
    assert not [name for name in ALLOWED if name not in found], "a reason without a reading"


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("import time\ntime.time()", 1),
        ("from time import time", 1),
        ("import time\nclock = time.time", 1),
        ("import time\ntime.monotonic()", 0),
    ],
)
def test_readings_are_found(source: str, count: int, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(source)
    assert len(readings(tmp_path / "module.py")) == count
