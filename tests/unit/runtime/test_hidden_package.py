"""Tests of `hidden`: libraries load as if an installed package were missing, and others may still use it."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from ratchet.runtime.hidden_package import hidden


def test_a_package_is_missing_inside_the_block_only() -> None:
    sys.modules.pop("wave", None)
    with hidden("wave"), pytest.raises(ModuleNotFoundError, match="wave is not loaded here"):
        import wave
    import wave  # noqa: F401


def test_another_thread_may_import_it_meanwhile() -> None:
    sys.modules.pop("wave", None)
    found: list[str] = []

    def load() -> None:
        import wave

        found.append(wave.__name__)

    with hidden("wave"):
        thread = threading.Thread(target=load)
        thread.start()
        thread.join()
    assert found == ["wave"]


_LAKE = """
import sys
from ratchet.materializer.lake.tables import Lake
from ratchet.materializer.lake.arrow import pa, pq
pa.table({"a": [1, None], "b": ["x", "y"]})
assert "pandas" not in sys.modules, "the lake has loaded pandas"
import pandas
assert pa.table({"a": [1]}).to_pandas().a[0] == 1, "a scorer may still use it"
"""


@pytest.mark.slow
def test_the_lake_loads_no_pandas_and_a_scorer_may() -> None:
    ran = subprocess.run([sys.executable, "-c", _LAKE], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
