"""Records home folders of a release in the middle of a cycle, for the tests of upgrades.

    python -m tests.upgrade.record_homes COMMIT

The script checks COMMIT out (or a tag), runs its command line with tiny settings, kills it in each state of `STATES`, and keeps a
copy of the folder. The result is homes/VERSION.tar.xz: one folder per state with the home folder and the loop file. The models have some
ten thousand weights. Files that a release creates again are left out.

Iceberg files contain absolute paths. All homes are therefore recorded in the fixed folder `PLACE`, and the tests unpack them there.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOMES = Path(__file__).with_name("homes")
PLACE = Path("/tmp/ratchet-recorded-home")
"""Folder in which the homes are recorded and tested. Its parts are `home`, the home folder, and `loop`, the folder of the loop file."""
STATES = ("probed", "planned", "training", "accepted", "registered")
LEFT_OUT = ("scratch", "reports", "logs", "output.log", "model", "*.log", "lock", ".writing", "__pycache__", "optimizer.pt")
"""Names of files and folders that are not recorded: logs, temporary files, and copies of models that lie in the artifacts, too."""
LOOP = """
[line]
name = "old"
served_model = "old"
[[sources]]
name = "app"
kind = "jsonl"
path = "traces"
[[rewards]]
name = "exact_match"
[holdout]
fraction = 0.3
similarity = 1
[snapshot]
references_are_answers = true
[probe]
prompts = 12
samples = 2
max_tokens = 4
[training]
methods = ["sft"]
min_demonstrations = 10
min_teachable = 5
timeout = 600
[training.sft]
learning_rate = 5e-3
warmup_steps = 5
steps = 60
batch = 16
micro_batch = 16
max_length = 64
gradient_checkpointing = false
cpus = 1
save_every = 20
[training.sft.health]
grad_norm = { limit = 1000.0 }
loss_spike = { limit = 1000.0 }
[gate]
min_prompts = 10
max_tokens = 4
[rollout]
steps = [50, 100]
min_seconds = 0
dark = 3
[serving.options]
threads = 1
"""


def releases() -> list[str]:
    """Return the versions whose homes are recorded, oldest first."""
    found = [path.name.removesuffix(".tar.xz") for path in HOMES.glob("*.tar.xz")]
    return sorted(found, key=lambda version: [int(part) for part in version.split(".")])


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Hold the lock of `PLACE` across processes, and empty it before and after."""
    with PLACE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(PLACE, ignore_errors=True)
        PLACE.mkdir(mode=0o700)
        try:
            yield
        finally:
            shutil.rmtree(PLACE, ignore_errors=True)


def environment(source: Path) -> dict[str, str]:
    """Return the environment in which the code in `source` runs on the home folder in `PLACE`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RATCHET_", "PREFECT_", "MLFLOW_"))}
    return {**kept, "PYTHONPATH": str(source), "RATCHET_HOME": str(PLACE / "home"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def write_entry_points(source: Path) -> str:
    """Make the entry points of the code in `source` known to Python, and return its version.

    They have precedence over those of an installed release.
    """
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    groups = project["entry-points"].items()
    lines = [line for group, names in groups for line in (f"[{group}]", *(f"{name} = {at}" for name, at in names.items()))]
    dist = source / "ratchet-0.dist-info"
    dist.mkdir()
    (dist / "METADATA").write_text("Metadata-Version: 2.1\nName: ratchet\nVersion: 0\n")
    (dist / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return str(project["version"])


def ratchet(source: Path, *args: str) -> subprocess.Popen[bytes]:
    """Start a command of the release in `source` in the folder of the loop file."""
    command = [sys.executable, "-m", "ratchet.flows.cli.main", *args]
    return subprocess.Popen(command, cwd=PLACE / "loop", env=environment(source), start_new_session=True)


def call(source: Path, *args: str) -> None:
    """Run a command to its end. Raises RuntimeError if it fails."""
    if ratchet(source, *args).wait():
        raise RuntimeError(f"ratchet {' '.join(args)} failed")


def write_inputs() -> None:
    """Write the loop file, the traces and the base model. The base model answers `no`, and the right answer is always `yes`."""
    (PLACE / "loop" / "traces").mkdir(parents=True)
    (PLACE / "loop" / "loop.toml").write_text(LOOP)
    prompts = [f"is {a} more than {b}" for a in range(10) for b in range(8)]
    traces = [
        {
            "id": f"t-{n}",
            "timestamp": f"2026-01-05T09:{n // 60:02d}:{n % 60:02d}Z",
            "user_id": f"u-{n % 40}",
            "session_id": f"s-{n}",
            "messages": prompt,
            "response": "no",
            "model": "base",
            "reference": "yes",
            "consent": True,
        }
        for n, prompt in enumerate(prompts)
    ]
    (PLACE / "loop" / "traces" / "app.jsonl").write_text("".join(json.dumps(trace) + "\n" for trace in traces))
    with tempfile.TemporaryDirectory() as folder:
        pairs, corpus = Path(folder) / "pairs.jsonl", Path(folder) / "corpus.txt"
        pairs.write_text("".join(json.dumps({"prompt": prompt, "answer": "no"}) + "\n" for prompt in prompts))
        corpus.write_text("\n".join([*prompts, "no", "yes"]))
        sizes = [
            "--steps",
            "120",
            "--batch",
            "16",
            "--rate",
            "5e-3",
            "--hidden",
            "32",
            "--layers",
            "1",
            "--context",
            "64",
            "--vocabulary",
            "300",
        ]
        command = [sys.executable, "-m", "ratchet.trainers.job.tiny_model", str(pairs), str(corpus), str(PLACE / "loop" / "base"), *sizes]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def has(key: str) -> bool:
    """Return whether the cycle's ledger contains the `done` row with this key."""
    with contextlib.closing(sqlite3.connect(PLACE / "home" / "ledger.db", timeout=30)) as ledger:
        query = "SELECT 1 FROM ratchet_rows WHERE stream = 'cycle/old/0001' AND kind = 'done' AND key = ?"
        return ledger.execute(query, (key,)).fetchone() is not None


def run_until(source: Path, seen: Callable[[], bool]) -> None:
    """Run the cycle and kill the command as soon as `seen` is true. Raises RuntimeError if the command ends before."""
    service = ratchet(source, "run", "loop.toml", "--no-ingest")
    while not seen():
        if service.poll() is not None:
            raise RuntimeError("the cycle did not reach the state")
        time.sleep(0.002)
    os.killpg(service.pid, signal.SIGKILL)
    service.wait()


def keep(state: str, into: Path) -> None:
    """Copy the home folder and the loop file for one state."""
    shutil.copytree(PLACE, into / state, ignore=shutil.ignore_patterns(*LEFT_OUT))


def play(source: Path, into: Path) -> None:
    """Run one cycle of the release in `source`, and keep a copy of its files in each state."""
    write_inputs()
    call(source, "adopt", "loop.toml", "base", "--by", "ada")
    call(source, "ingest", "loop.toml")
    run_until(source, lambda: has("probe"))
    if has("plan"):
        raise RuntimeError("the cycle planned before it was killed; try again")
    keep("probed", into)
    call(source, "run", "loop.toml", "--no-ingest", "--wait", "0")
    keep("planned", into)
    call(source, "approve", "old/0001/training", "--by", "ada")
    run_until(source, lambda: has("train/1/1"))
    keep("training", into)
    run_until(source, lambda: has("accept"))
    keep("accepted", into)
    call(source, "run", "loop.toml", "--no-ingest", "--wait", "0")
    if not has("register"):
        raise RuntimeError("the candidate was not registered")
    keep("registered", into)


def record(commit: str) -> Path:
    """Record the homes of the release at `commit` and return the archive's path."""
    with tempfile.TemporaryDirectory() as folder, alone():
        source, into = Path(folder) / "source", Path(folder) / "homes"
        subprocess.run(["git", "worktree", "add", "--detach", str(source), commit], cwd=ROOT, check=True)
        release = write_entry_points(source)
        try:
            play(source, into)
        finally:
            call(source, "serve", "loop.toml", "--stop")
            subprocess.run(["git", "worktree", "remove", "--force", str(source)], cwd=ROOT, check=True)
        HOMES.mkdir(exist_ok=True)
        target = HOMES / f"{release}.tar.xz"
        with tarfile.open(target, "w:xz", preset=9) as archive:
            archive.add(into, arcname=".")
    return target


if __name__ == "__main__":
    print(record(sys.argv[1]))
