"""The first process of a real node, in separate PID and mount namespaces: `python machine.py machine.json`.

It starts the container runtime, imports the images, starts the kubelet, and reaps orphaned processes. When it dies, the kernel ends every
process and mount of the node and of its containers at once; the tests use this to simulate the loss of a machine. The script runs in
isolated mode, so it imports only the standard library.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

PRIVATE = ("/run/containerd", "/var/lib/kubelet", "/var/lib/cni", "/var/log/containers")
"""Folders whose paths are fixed in the programs. Each node mounts its own file system there, so that two nodes do not share them."""


def main() -> None:
    """Run the node described by the JSON file in the first argument, until containerd or the kubelet ends."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    for folder in PRIVATE:
        subprocess.run(["mount", "-t", "tmpfs", "machine", folder], check=True)
    runtime = subprocess.Popen(plan["containerd"])
    control = ["ctr", "--address", plan["socket"], "--namespace", "k8s.io"]
    while subprocess.run([*control, "version"], capture_output=True, check=False).returncode != 0:
        if runtime.poll() is not None:
            sys.exit(f"containerd ended with exit code {runtime.returncode} before it was ready")
        time.sleep(0.1)
    for image in plan["images"]:
        subprocess.run([*control, "images", "import", image], stdout=subprocess.DEVNULL, check=True)
    kubelet = subprocess.Popen(plan["kubelet"])
    while True:
        pid, status = os.wait()
        if pid in (runtime.pid, kubelet.pid):
            sys.exit(f"{'containerd' if pid == runtime.pid else 'the kubelet'} ended with exit code {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main()
