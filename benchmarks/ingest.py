"""What ingest costs beside a bare engine and beside a pandas script: CPU seconds and peak memory of processes of their own.

All arms read the same made-up JSON Lines (ingest_corpus.py). `ingest` writes a new lake (ingest_files.py), start included; the start is
reported apart. DuckDB (ingest_duckdb.py) and pandas (ingest_pandas.py) do a small part of the task, with masks for e-mail
addresses and phone numbers only.

`python benchmarks/ingest.py [--records 60000] [--section speed --section otlp]`. The sections:
- speed: the arms, with all kinds masked, with `mask = []`, with the two masks of the others, and the same file again
- shapes: one message of 1 KB, 20 messages with tools, tiny records
- otlp: decoding and admission of a span of 1 KB with masks, from JSON and from protobuf
- memory: the peak for several sizes (`--sizes`), for records of 120 KB, and for gzip
- batches: what the last of many batches costs against the first ones (`--batches`)
- processes: one set of files, ingested by the service itself and with two worker processes (`compute.engine`), in wall seconds
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import click
from ingest_corpus import Corpus, protobuf

from ratchet.contracts.data.datasets import RawBatch
from ratchet.contracts.data.decoding import Limits
from ratchet.contracts.ids import digest, digest_file
from ratchet.contracts.loop import PrivacySettings
from ratchet.materializer.dialects.admission import Admission
from ratchet.materializer.dialects.decode import BUILT_IN, decode
from ratchet.materializer.privacy.masking import Masker
from ratchet.runtime.secrets.keyring import Key
from ratchet.runtime.secrets.pseudonyms import pseudonym

HERE = Path(__file__).resolve().parent
_LOOP = """[line]
name = "bench"
served_model = "m"
{privacy}
[[sources]]
name = "history"
kind = "jsonl"
path = "{file}"
[[rewards]]
name = "exact_match"
"""
_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "POLARS_MAX_THREADS", "RAYON_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_MASKS: Mapping[str, str] = {
    "ingest": "",
    "ingest_two_masks": '[privacy]\nmask = ["email", "phone"]\n',
    "ingest_no_mask": "[privacy]\nmask = []\n",
}


def run(command: Sequence[str]) -> dict[str, float]:
    """Run a command. Returns its CPU seconds, its wall seconds and its peak memory in MB."""
    return heard(command)[0]


def heard(command: Sequence[str]) -> tuple[dict[str, float], bytes]:
    """Run a command as `run` does. Returns also what it printed."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, env={**os.environ, **_THREADS}, stdout=subprocess.PIPE, stderr=errors)
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            raise click.ClickException(f"{' '.join(command)}: {errors.read().decode()[-2000:]}")
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu_s": round(cpu, 2), "wall_s": round(wall, 2), "peak_mb": round(used.ru_maxrss / 1024)}, said


def script(name: str, file: Path, folder: Path) -> dict[str, float]:
    """Run one of the two scripts."""
    shutil.rmtree(folder, ignore_errors=True)
    return run([sys.executable, str(HERE / name), str(file), str(folder)])


def ingest(file: Path, home: Path, privacy: str = "", new: bool = True) -> dict[str, float]:
    """Ingest a file."""
    return ingest_and_count(file, home, privacy, new)[0]


def ingest_and_count(
    file: Path, home: Path, privacy: str = "", new: bool = True, more: Sequence[str] = ()
) -> tuple[dict[str, float], dict[str, Any]]:
    """Ingest a file. Returns also its report."""
    if new:
        shutil.rmtree(home, ignore_errors=True)
    home.mkdir(exist_ok=True)
    (home / "loop.toml").write_text(_LOOP.format(file=file, privacy=privacy), encoding="utf-8")
    figures, said = heard([sys.executable, str(HERE / "ingest_files.py"), str(file), str(home), *more])
    return figures, json.loads(said)


def write(path: Path, pieces: Iterable[bytes]) -> Path:
    """Write a file."""
    with path.open("wb") as file:
        file.writelines(pieces)
    return path


def best(measure: Callable[[], dict[str, float]], times: int) -> dict[str, float]:
    """Return the measurement with the least CPU time of several, and the largest peak."""
    found = [measure() for _ in range(times)]
    return min(found, key=lambda one: one["cpu_s"]) | {"peak_mb": max(one["peak_mb"] for one in found)}


def speed(folder: Path, corpus: Corpus, times: int) -> dict[str, Any]:
    """Measure all arms on one corpus. Ratios are CPU seconds over CPU seconds."""
    file = write(folder / "records.jsonl", corpus.lines())
    few = write(folder / "few.jsonl", Corpus(10, corpus.shape).lines())
    arms: dict[str, dict[str, float]] = {
        "duckdb": best(lambda: script("ingest_duckdb.py", file, folder / "duckdb"), times),
        "pandas": best(lambda: script("ingest_pandas.py", file, folder / "pandas"), times),
    }
    for name, privacy in _MASKS.items():
        arms[name] = best(lambda privacy=privacy: ingest(file, folder / "home", privacy), times)  # type: ignore[misc]
    arms["ingest_again"] = ingest(file, folder / "home", _MASKS["ingest_no_mask"], new=False)
    arms["ingest_start"] = best(lambda: ingest(few, folder / "home"), times)
    us = {name: round(arm["cpu_s"] / corpus.records * 1e6, 1) for name, arm in arms.items() if name not in ("ingest_again", "ingest_start")}
    ratios = {
        f"{name}_over_{other}": round(arms[name]["cpu_s"] / arms[other]["cpu_s"], 2) for name in _MASKS for other in ("duckdb", "pandas")
    }
    return {"records": corpus.records, "bytes": file.stat().st_size, "arms": arms, "cpu_us_per_record": us, "ratios": ratios}


def shapes(folder: Path, records: int) -> dict[str, Any]:
    """Measure ingest by the shape of the records, less its start."""
    few = write(folder / "few.jsonl", Corpus(10).lines())
    start = ingest(few, folder / "home")["cpu_s"]
    found = {}
    for name, corpus in (("one", Corpus(records)), ("turns", Corpus(records // 3, "turns")), ("tiny", Corpus(records, "tiny"))):
        file = write(folder / "records.jsonl", corpus.lines())
        taken = ingest(file, folder / "home")
        us = round((taken["cpu_s"] - start) / corpus.records * 1e6, 1)
        found[name] = {"records": corpus.records, "bytes": file.stat().st_size, "cpu_us_per_record": us, "peak_mb": taken["peak_mb"]}
    return found


def otlp(spans: int) -> dict[str, Any]:
    """Measure decoding and admission of spans, from JSON and protobuf, with all masks and without."""
    requests = list(Corpus(spans).requests())
    frames = [b"T" + len(body).to_bytes(4, "big") + body for body in map(protobuf, requests)]
    bodies = {"json": b"".join(one + b"\n" for one in requests), "protobuf": b"".join(frames)}
    key = Key(id=1, secret="5e" * 32, created=datetime(2026, 1, 1, tzinfo=UTC))
    limits = Limits(now=int(time.time() * 1e6) + 10**14)
    found = {}
    for masked in (True, False):
        masker = Masker(PrivacySettings() if masked else PrivacySettings(mask=()))
        for name, body in bodies.items():
            kind = "otlp-json" if name == "json" else "otlp-proto"
            batch = RawBatch("b", kind, digest(body), "b", lambda body=body: BytesIO(body))  # type: ignore[misc]
            hide = lru_cache(maxsize=50_000)(lambda subject, text: pseudonym(subject, text, key))
            admission = Admission(hide=hide, mask=masker.mask, bulk=masker)
            least = float("inf")
            for _ in range(3):
                begun = time.process_time()
                decoded = decode(batch, limits, BUILT_IN, admission)
                least = min(least, time.process_time() - begun)
            if len(decoded.traces) != spans:
                raise click.ClickException(f"{len(decoded.traces)} of {spans} spans were decoded: {decoded.bad[:1]}")
            found[name + ("" if masked else "_no_mask")] = round(least / spans * 1e6, 1)
    return {"spans": spans, "bytes": {name: len(body) // spans for name, body in bodies.items()}, "cpu_us_per_span": found}


def memory(folder: Path, sizes: Sequence[int]) -> dict[str, Any]:
    """Measure the peak memory for files of several sizes, and for large records."""
    found = {}
    cases: list[tuple[str, Corpus]] = [(f"{size:,} records", Corpus(size)) for size in sizes]
    cases.append(("records of 120 KB", Corpus(8_000, size=120_000)))
    for name, corpus in cases:
        file = write(folder / "records.jsonl", corpus.lines())
        found[name] = {"bytes": file.stat().st_size} | ingest(file, folder / "home")
        file.unlink()
    return found


def batches(folder: Path, count: int, records: int) -> dict[str, Any]:
    """Ingest many files of some records one after another with one process, and return the CPU seconds of the 10th and the last ones."""
    place = folder / "files"
    place.mkdir()
    for number in range(count):
        write(place / f"{number:05d}.jsonl", Corpus(records, seed=number + 1, size=200, prefix=f"f{number}-").lines())
    seconds = ingest_and_count(place, folder / "home")[1]["seconds"]

    def around(at: int) -> float:
        near = sorted(seconds[max(0, at - 5) : at + 5])
        return float(near[len(near) // 2])

    tenth, last = around(10), around(count - 5)
    return {"batches": count, "records": records, "tenth_cpu_s": tenth, "last_cpu_s": last, "ratio": round(last / tenth, 2), "all": seconds}


def processes(folder: Path, records: int, times: int) -> dict[str, Any]:
    """Measure an ingest with two worker processes against one by the service itself, with one thread each. The stored rows are compared.

    `wall_s` is without the start of the command, and with that of the workers. On a busy machine it says little; then `at_best` is the
    ratio that the CPU seconds allow on two idle cores: the service's own part cannot be shared, and both cores have to do all of it.
    """
    place = folder / "files"
    place.mkdir()
    for number in range(4):
        write(place / f"{number}.jsonl", Corpus(records // 4, seed=number, prefix=f"f{number}-").lines())
    found: dict[str, Any] = {}
    for engine in ("inline", "processes"):
        arms = []
        for _ in range(times):
            _, said = ingest_and_count(place, folder / "home", f'[compute]\nengine = "{engine}"\nworkers = 2\n', more=["--rows"])
            figures = {"wall_s": said["wall_s"], "service_cpu_s": round(sum(said["seconds"]), 2), "workers_cpu_s": said["workers_cpu_s"]}
            arms.append({**figures, "service_peak_mb": said["peak_mb"], "rows": said["rows"]})
        found[engine] = min(arms, key=lambda one: float(one["wall_s"]))
    one, two = found["inline"], found["processes"]
    if one.pop("rows") != two.pop("rows"):
        raise click.ClickException("the engines have stored other rows")
    least = max(two["service_cpu_s"], (two["service_cpu_s"] + two["workers_cpu_s"]) / 2)
    ratios = {"times_as_fast": round(one["wall_s"] / two["wall_s"], 2), "at_best": round(one["service_cpu_s"] / least, 2)}
    return {"records": records, **found, **ratios}


def code() -> str:
    """Return the digest of the sources of the materializer."""
    room = HERE.parent / "materializer"
    return digest([[path.relative_to(room).as_posix(), digest_file(path)] for path in sorted(room.rglob("*.py"))])[:12]


@click.command()
@click.option("--section", "sections", multiple=True, default=("speed", "shapes", "otlp"))
@click.option("--records", default=60_000, help="Records of the sections speed, shapes and processes.")
@click.option("--times", default=2, help="Repetitions of each arm; the least CPU time counts.")
@click.option("--sizes", default="60000,300000", help="Records of the section memory.")
@click.option("--batches", "count", default=200, help="Batches of the section batches.")
@click.option("--batch", default=2_000, help="Records of each of these batches.")
@click.option("--place", type=click.Path(path_type=Path), help="Folder for the files. Default: a temporary one.")
@click.option("--out", type=click.Path(path_type=Path), default=HERE / "results" / "ingest.json")
def main(sections: Sequence[str], records: int, times: int, sizes: str, count: int, batch: int, place: Path | None, out: Path) -> None:
    """Measure the sections, and write them into the result."""
    result: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    measures: dict[str, Callable[[Path], dict[str, Any]]] = {
        "speed": lambda folder: speed(folder, Corpus(records), times),
        "shapes": lambda folder: shapes(folder, records),
        "otlp": lambda _folder: otlp(4_000),
        "memory": lambda folder: memory(folder, [int(size) for size in sizes.split(",")]),
        "batches": lambda folder: batches(folder, count, batch),
        "processes": lambda folder: processes(folder, records, times),
    }
    for section in sections:
        with tempfile.TemporaryDirectory(dir=place) as folder:
            about = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "code": code(), "cores": os.cpu_count()}
            load = round(os.getloadavg()[0], 1)
            result[section] = {**about, "load_before": load, **measures[section](Path(folder))}
        click.echo(json.dumps({section: result[section]}, indent=2))
        out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
