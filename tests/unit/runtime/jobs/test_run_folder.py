"""Tests of what a log says about the end of its writer."""

from __future__ import annotations

from pathlib import Path

from ratchet.runtime.jobs.run_folder import last_words

ENGINE = """(APIServer pid=1) INFO waiting for the engine
(EngineCore pid=2) ERROR 11-27 07:04:01 [core.py:1100] Traceback (most recent call last):
(EngineCore pid=2) ERROR 11-27 07:04:01 [core.py:1100]   File "worker.py", line 12, in init_device
(EngineCore pid=2) ERROR 11-27 07:04:01 [core.py:1100] ValueError: Free memory on device (3.1/79.2 GiB) on startup is less than desired
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1)   File "utils.py", line 1150, in launch_core_engines
(APIServer pid=1)     wait_for_engine_startup(

(APIServer pid=1)     raise RuntimeError(
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def test_the_cause_in_another_process_comes_before_the_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_text(ENGINE)
    said = last_words(log)
    assert said.startswith("ValueError: Free memory on device (3.1/79.2 GiB) on startup is less than desired … ")
    assert said.endswith("Engine core initialization failed. See root cause above. Failed core proc(s): {}")
    assert len(said) <= 500


def test_the_exceptions_of_an_earlier_start_are_not_the_cause(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_text(ENGINE)
    before = log.stat().st_size
    with log.open("a") as more:
        more.write("starting\nOSError: [Errno 98] address already in use\n")
    assert last_words(log, before) == "starting | OSError: [Errno 98] address already in use"


def test_an_exception_in_the_last_lines_is_not_repeated(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_text("loading\nTraceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory\n")
    assert last_words(log) == "loading | Traceback (most recent call last): | torch.OutOfMemoryError: CUDA out of memory"


def test_a_log_without_exceptions_or_without_anything(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    assert last_words(log) == "no output"
    log.write_bytes(b"")
    assert last_words(log, 10) == "no output"
    log.write_bytes(b"one\n\xff two\n\nFutureWarning: old\nthree\n")
    assert last_words(log) == "\ufffd two | FutureWarning: old | three"
