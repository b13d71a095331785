"""Container images that are written as files, without a container engine or a registry.

`pause` keeps the network of a pod alive. `host` is almost empty; pods of real nodes mount this machine's programs and libraries into it.
"""

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
    """Write both images as archives for `ctr images import` and return their paths."""
    folder.mkdir(exist_ok=True)
    pause, host = folder / "pause.tar", folder / "host.tar"
    _write(pause, PAUSE, {"pause": (need("pause").read_bytes(), 0o755)}, {}, "/pause")
    folders = dict.fromkeys(("usr", "bin", "lib", "lib64", "etc", "root", "proc", "sys", "dev"), 0o755) | {"tmp": 0o1777}
    _write(host, HOST, {name: (text, 0o644) for name, text in ACCOUNTS.items()}, folders, "")
    return [pause, host]


def host_mounts(*read: Path | str, write: tuple[Path | str, ...] = ()) -> dict[str, list[dict]]:
    """Return the `volumes` and `volumeMounts` that give a pod access to this machine's programs and to the given folders.

    Paths in the container are the same as on this machine; only the folders in `write` are writable.
    """
    volumes, mounts = [], []
    for number, path in enumerate([*SYSTEM, *read, *write]):
        volumes.append({"name": f"host-{number}", "hostPath": {"path": str(path)}})
        mounts.append({"name": f"host-{number}", "mountPath": str(path), "readOnly": path not in write})
    return {"volumes": volumes, "volumeMounts": mounts}


def _write(path: Path, reference: str, files: Mapping[str, tuple[bytes, int]], folders: Mapping[str, int], command: str) -> None:
    """Write an image with a single layer; `files` maps names to (content, mode), `folders` maps names to modes."""
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
    """Return a tar archive; an entry without content (None) is a folder."""
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
