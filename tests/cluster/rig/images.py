"""Container images written as files, without an engine or a registry: `pause`, which keeps a pod's network alive, and `host`, an almost
empty one into which pods of real nodes mount this machine's own programs and libraries."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.rig.build import need

PAUSE = "rig.local/pause:1"
HOST = "rig.local/host:1"
SYSTEM = ("/usr", "/bin", "/lib", "/lib64")
ACCOUNTS = {
    "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\n",
    "etc/group": b"root:x:0:\n",
    "etc/nsswitch.conf": b"hosts: files dns\n",
}


def write_images(folder: Path) -> list[Path]:
    """Archives that `ctr images import` takes."""
    folder.mkdir(exist_ok=True)
    pause, host = folder / "pause.tar", folder / "host.tar"
    _write(pause, PAUSE, {"pause": (need("pause").read_bytes(), 0o755)}, {}, "/pause")
    folders = dict.fromkeys(("usr", "bin", "lib", "lib64", "etc", "root", "proc", "sys", "dev"), 0o755) | {"tmp": 0o1777}
    _write(host, HOST, {name: (text, 0o644) for name, text in ACCOUNTS.items()}, folders, "")
    return [pause, host]


def host_mounts(*read: Path | str, write: tuple[Path | str, ...] = ()) -> dict[str, list[dict]]:
    """`volumes` of a pod and `volumeMounts` of its container that show it this machine's programs, and the folders `read` and `write`
    under the paths they have here."""
    volumes, mounts = [], []
    for number, path in enumerate([*SYSTEM, *read, *write]):
        volumes.append({"name": f"host-{number}", "hostPath": {"path": str(path)}})
        mounts.append({"name": f"host-{number}", "mountPath": str(path), "readOnly": path not in write})
    return {"volumes": volumes, "volumeMounts": mounts}


def _write(path: Path, reference: str, files: Mapping[str, tuple[bytes, int]], folders: Mapping[str, int], command: str) -> None:
    """One image of one layer; files with their modes, folders with theirs."""
    layer = _tar({**{name: (None, mode) for name, mode in folders.items()}, **files})
    layer_name = hashlib.sha256(layer).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [command] if command else [], "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_name}"]},
    }
    text = json.dumps(config).encode()
    config_name = f"{hashlib.sha256(text).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [reference], "Layers": [f"{layer_name}.tar"]}]
    entries = {config_name: text, f"{layer_name}.tar": layer, "manifest.json": json.dumps(manifest).encode()}
    path.write_bytes(_tar({name: (data, 0o644) for name, data in entries.items()}))


def _tar(entries: Mapping[str, tuple[bytes | None, int]]) -> bytes:
    """Without contents: a folder."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, (data, mode) in entries.items():
            entry = tarfile.TarInfo(name)
            entry.mode = mode
            if data is None:
                entry.type = tarfile.DIRTYPE
                tar.addfile(entry)
            else:
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    return made.getvalue()
