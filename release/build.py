"""Builds the wheel and the sdist of HEAD, and writes checksums and a software bill of materials.

Usage: `python release/build.py FOLDER`, in the environment of requirements/release.lock. Both archives are built twice, in different
folders, and must have equal bytes. Their file lists must be those of the tracked files. See docs/release.md.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "ratchet"


def git(*arguments: str) -> str:
    """Return the output of a git command in the repository."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def tracked() -> set[str]:
    """Return the files that an archive must contain: those below `ratchet`, with the linked folders in place of the links."""
    found: set[str] = set()
    for line in git("ls-tree", "-r", "HEAD").splitlines():
        mode, name = line.split()[0], line.split("\t")[1]
        if name.startswith(f"{PACKAGE}/"):
            if mode == "120000":
                target = os.path.normpath(f"{PACKAGE}/{git('show', f'HEAD:{name}')}")
                inside = git("ls-tree", "-r", "--name-only", "HEAD", target).splitlines()
                found |= {f"{name}{path.removeprefix(target)}" for path in inside}
            else:
                found.add(name)
    return found


def build(source: Path, out: Path, epoch: str) -> None:
    """Build sdist and wheel of HEAD from an export below `source` into `out`."""
    archive = subprocess.run(["git", "archive", "--format=tar", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(source, **({"filter": "tar"} if hasattr(tarfile, "data_filter") else {}))
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, env={**os.environ, "SOURCE_DATE_EPOCH": epoch}, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the build failed:\n{done.stdout[-3000:]}{done.stderr[-2000:]}")
    (sdist,) = out.glob("*.tar.gz")
    normalise(sdist, int(epoch))


def normalise(sdist: Path, epoch: int) -> None:
    """Write the sdist again, with sorted files, without owners, and with the time of the commit. setuptools uses the time of the build."""
    content = io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime, member.pax_headers = epoch, {}
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(member, old.extractfile(member) if member.isreg() else None)
    with sdist.open("wb") as raw, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=epoch) as file:
        file.write(content.getvalue())


def check_files(wheel: Path, sdist: Path, version: str) -> None:
    """Exit if an archive lacks a tracked file or has one that is not tracked."""
    expected = tracked()
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if not name.startswith(f"{PACKAGE}-{version}.dist-info/")}
    complain(wheel, expected, inside)
    top = f"{PACKAGE}-{version}/"
    with tarfile.open(sdist) as archive:
        names = {member.name.removeprefix(top) for member in archive.getmembers() if member.isreg()}
    generated = {name for name in names if name.startswith(f"{PACKAGE}.egg-info/")} | {"PKG-INFO", "setup.cfg"}
    complain(sdist, expected | {"LICENSE", "README.md", "pyproject.toml"}, names - generated)


def complain(archive: Path, expected: set[str], inside: set[str]) -> None:
    """Exit with the differences if the names are not equal."""
    if expected != inside:
        lacks, has = sorted(expected - inside)[:5], sorted(inside - expected)[:5]
        sys.exit(f"{archive.name} lacks {lacks} and has unexpected files {has}; correct [tool.setuptools] in pyproject.toml")


def bill_of_materials(out: Path, version: str) -> Path:
    """Write the packages of requirements/train.lock, with versions and hashes, in CycloneDX JSON."""
    target = out / f"{PACKAGE}-{version}.cdx.json"
    program = str(Path(sys.executable).with_name("cyclonedx-py"))
    command = [program, "requirements", "--output-reproducible", "--pyproject", str(ROOT / "pyproject.toml")]
    subprocess.run(
        [*command, "--output-file", str(target), str(ROOT / "requirements" / "train.lock")],
        check=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    if len(json.loads(target.read_text())["components"]) < 100:
        sys.exit(f"{target} lists fewer packages than the lock file; the generator has changed")
    return target


def main(out: Path) -> None:
    """Build, compare, check, and write everything to `out`."""
    changed = git("status", "--porcelain", "--untracked-files=no")
    if changed:
        sys.exit(f"commit or remove these changes first, because the archives contain HEAD:\n{changed}")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    if not any(line.startswith(f"## {version} (20") for line in (ROOT / "CHANGELOG.md").read_text().splitlines()):
        print(f"note: CHANGELOG.md has no date for {version}; a release needs one")
    epoch = git("log", "-1", "--format=%ct").strip()
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        print(f"building {PACKAGE} {version} of {git('rev-parse', '--short', 'HEAD').strip()} twice")
        build(Path(one) / "source", out, epoch)
        build(Path(other) / "another-place", Path(other) / "again", epoch)
        for path in sorted(out.iterdir()):
            if path.read_bytes() != (Path(other) / "again" / path.name).read_bytes():
                sys.exit(f"{path.name} has other bytes in the second build")
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    check_files(wheel, sdist, version)
    bill_of_materials(out, version)
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(out.iterdir()))
    (out / "SHA256SUMS").write_text(sums)
    print(sums, end="")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
