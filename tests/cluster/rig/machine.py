"""A real node, as the first process of namespaces of its own: `python machine.py machine.json`. It starts the container runtime, gives it
the images, starts the kubelet, and reaps orphans. When it dies the kernel ends at once every process and mount of the node, with those
of its containers: that is how a machine is lost. It runs by itself, so it imports nothing of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

PRIVATE = ("/run/containerd", "/var/lib/kubelet", "/var/lib/cni", "/var/log/containers")
"""Folders that the programs name themselves, whatever they are told; two nodes would meet there."""


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    for folder in PRIVATE:
        subprocess.run(["mount", "-t", "tmpfs", "machine", folder], check=True)
    runtime = subprocess.Popen(plan["containerd"])
    control = ["ctr", "--address", plan["socket"], "--namespace", "k8s.io"]
    while subprocess.run([*control, "version"], capture_output=True, check=False).returncode != 0:
        if runtime.poll() is not None:
            sys.exit(f"containerd ended with {runtime.returncode} before it served")
        time.sleep(0.1)
    for image in plan["images"]:
        subprocess.run([*control, "images", "import", image], stdout=subprocess.DEVNULL, check=True)
    kubelet = subprocess.Popen(plan["kubelet"])
    while True:
        pid, status = os.wait()
        if pid in (runtime.pid, kubelet.pid):
            sys.exit(f"{'containerd' if pid == runtime.pid else 'the kubelet'} ended: {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main()
