"""`ratchet k8s`: renders manifests, checks the cluster and the installation, guards gangs and shows job logs."""

from __future__ import annotations

import sys
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.loop import Loop
from ratchet.flows.cli.lines import named_loop
from ratchet.flows.cli.names import LineName, complete_line, loop_argument
from ratchet.flows.cli.output import json_line, json_option, open_installation, print_json
from ratchet.flows.cli.terminal import show
from ratchet.flows.config.home import Home
from ratchet.flows.config.load import load_loop

if TYPE_CHECKING:
    from ratchet.k8s.manifests.render import Part


@click.group()
def k8s() -> None:
    """Prepare and check the Kubernetes cluster of a line, and show its logs.

    LOOP is the path of a loop file with a [cluster] section, or the name of its line.
    """


def _opened(loop: str, quiet: bool) -> tuple[Loop, Path, Home]:
    """Return the settings of the loop file that the user names, its folder, and the home folder."""
    installation = open_installation()
    path = named_loop(installation, loop, quiet).absolute()
    return load_loop(path), path.parent, installation.home


@k8s.command()
@loop_argument
@click.option("--admin", "part", flag_value="admin", help="Print only the manifests that an administrator applies once.")
@click.option("--gang", "part", flag_value="gang", help="Print only samples of the manifests that the service applies for each gang.")
@click.option(
    "--ray-job",
    "part",
    flag_value="ray-job",
    help="Print samples of the gangs on Ray as RayJobs of KubeRay. You submit them; the service does not observe them.",
)
@click.option(
    "--eks", metavar="NAME", help="Name of the EKS cluster, for nodes on AWS. Its subnets and security groups must carry the cluster's tag."
)
@click.option("--ami", metavar="FAMILY@VERSION", help="Image of AWS nodes, with a fixed version, for example al2023@v20260901.")
@click.option("--node-role", metavar="NAME", help="IAM role of AWS nodes. Default: KarpenterNodeRole-CLUSTER.")
@click.option("--placement-group", metavar="NAME", help="EC2 placement group for the nodes of a gang.")
@click.option(
    "--reservation",
    multiple=True,
    metavar="ID",
    help="EC2 capacity reservation, for cluster.pool.capacity = reserved. Repeat the option for several.",
)
@click.option(
    "--storage-class", metavar="NAME", help="Storage class of the shared volume. It must allow writes from many nodes (ReadWriteMany)."
)
@click.option(
    "--lustre",
    type=click.Choice(["125", "250", "500", "1000"]),
    help="Also render a storage class of Google's Managed Lustre with this throughput, in MB/s per TiB, for the shared volume.",
)
@click.option("--size", metavar="QUANTITY", help="Size of the shared volume. Default: 1Ti, or the smallest volume of Managed Lustre.")
@click.option(
    "--judge", metavar="FOLDER", help="Folder of the judge model on the shared volume. Also renders the judge servers; requires --vllm."
)
@click.option("--vllm", metavar="IMAGE", help="vLLM image of the judge servers. Requires --judge.")
@click.option(
    "--with",
    "others",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="LOOP",
    help="Loop file of another line in the same namespace, whose images and Secrets the admission rules also allow. Repeat the option "
    "for several.",
)
def render(loop: str, part: Part | None, others: tuple[Path, ...], **options: Any) -> None:
    """Print the Kubernetes manifests that LOOP requires.

    The output is YAML in the order in which to apply it, with a sample of each gang. The cluster is not changed.
    """
    from ratchet.flows.composition.cluster import render_cluster

    unused = sorted(f"--{name.replace('_', '-')}" for name, value in options.items() if value)
    if part == "ray-job" and (unused or others):
        raise ConfigError(f"--ray-job prints gangs alone, without {', '.join([*unused, *(['--with'] if others else [])])}")
    beside = [(load_loop(other), other.absolute().parent) for other in others]
    sheet = render_cluster(*_opened(loop, quiet=False), part or "all", beside, **options)
    show(sheet, newline=False)


@k8s.command()
@loop_argument
@click.option("--seconds", default=2.0, show_default=True, help="Interval between two checks, in seconds.")
@click.option("--once", is_flag=True, help="Check once and exit.")
@json_option
def guard(loop: str, seconds: float, once: bool, as_json: bool) -> None:
    """Watch LOOP's gangs and repair incomplete ones.

    A gang is incomplete if only some of its processes are running. `ratchet serve` does the same while it runs; use this command when
    the service is not running. It does not submit jobs. With --json, each repair is one line of JSON.
    """
    from ratchet.flows.composition.cluster import guard_cluster

    for repair in guard_cluster(*_opened(loop, as_json), seconds, once):
        if as_json:
            json_line({"repair": repair})
        else:
            show(repair)


@k8s.command()
@loop_argument
@click.argument("job", required=False)
@click.option("--lines", default=20, show_default=True, help="Number of lines to show from the end of each log.")
@click.option("--follow", is_flag=True, help="Print new lines until the job has ended.")
@json_option
def logs(loop: str, job: str | None, lines: int, follow: bool, as_json: bool) -> None:
    """Print the latest log lines of JOB, or of LOOP's newest job.

    JOB is the name of a job of the line. Shows the logs of the job's existing pods, and the trainer logs from the run folder.
    With --json, each line of a log is one line of JSON.
    """
    from ratchet.flows.composition.cluster import job_logs

    for line in job_logs(*_opened(loop, as_json), job, lines, follow):
        if as_json:
            json_line({"line": line})
        else:
            show(line)


@k8s.command()
@click.option("--registry", required=True, metavar="HOST/PATH", help="Registry and path to which the images are pushed.")
@click.option("--tag", default=lambda: version("ratchet"), show_default="the version of Ratchet", help="Tag of the images.")
@click.option(
    "--builder", type=click.Choice(["docker", "podman", "buildah"]), default="docker", show_default=True, help="Program that builds images."
)
@click.option("--ray", is_flag=True, help='Build the image of the control plane with Ray, for compute.engine = "ray".')
def images(registry: str, tag: str, builder: str, ray: bool) -> None:
    """Print the commands that build and push the images of an installation on a cluster.

    The definitions are in k8s/images. Nothing is built or pushed.
    """
    from ratchet.k8s.images.build_commands import build_commands

    show("\n".join(build_commands(registry, tag, builder, ray)))


@k8s.command()
@click.argument("loops", nargs=-1, required=True, type=LineName(), shell_complete=complete_line)
@click.option("--rotate", "former", type=click.File("rb"), metavar="FILE", help="The present Secret as kubectl prints it. Adds new keys.")
@click.option("--extend", "extended", type=click.File("rb"), metavar="FILE", help="The same. Adds keys of new lines only.")
def keys(loops: tuple[str, ...], former: BinaryIO | None, extended: BinaryIO | None) -> None:
    """Print the Secret with the keys of an installation whose lines are defined by LOOPS.

    LOOPS are the paths of loop files, or names of lines. Create the Secret once: ratchet k8s keys loop.toml | kubectl create -f -

    Without --rotate or --extend, all keys are new, and nothing that was computed with former keys is valid. Keep a copy elsewhere.
    """
    import yaml

    from ratchet.flows.composition.pod_keys import keys_secret

    given = former or extended
    try:
        known = yaml.safe_load(given.read()) if given else None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError("the file is not YAML or JSON; give the output of `kubectl get secret NAME -o yaml`") from error
    if given and not isinstance(known, dict):
        raise ConfigError("the file is not a Secret as `kubectl get secret NAME -o yaml` prints it")
    installation = open_installation()
    names = sorted({load_loop(named_loop(installation, one, quiet=True)).line.name for one in loops})
    sheet = keys_secret(names, datetime.now(UTC), known, rotate=former is not None)
    show(yaml.safe_dump(sheet, sort_keys=False), newline=False)


@k8s.command()
@loop_argument
@json_option
def lint(loop: str, as_json: bool) -> None:
    """Check whether LOOP's gangs can run on the live cluster.

    Prints each problem with its remedy. Exits with code 1 if a problem would stop a gang. The cluster is not changed.
    """
    from ratchet.flows.composition.cluster import lint_cluster

    found = lint_cluster(*_opened(loop, as_json))
    if as_json:
        print_json([dict(zip(("level", "about", "text", "remedy"), one, strict=True)) for one in found])
    else:
        for level, about, text, remedy in found:
            show(f"{level:4} ", fg="red" if level == "stop" else None, newline=False)
            show(f"{about}: {text}" + (f"; {remedy}" if remedy else ""))
        if not any(level == "stop" for level, *_ in found):
            show("no problems found that would stop a gang")
    sys.exit(1 if any(level == "stop" for level, *_ in found) else 0)


@k8s.command()
@click.argument("loops", nargs=-1, required=True, type=LineName(), shell_complete=complete_line)
@click.option(
    "--values", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Values of the chart, as `helm install` gets them."
)
@click.option("--release", default="ratchet", show_default=True, help="Name of the Helm release.")
@click.option("--namespace", default="ratchet", show_default=True, help="Namespace of the release.")
@click.option("--context", metavar="NAME", help="Context of the kubeconfig. Default: that of the loop files, or the current one.")
@json_option
def doctor(loops: tuple[str, ...], values: Path | None, release: str, namespace: str, context: str | None, as_json: bool) -> None:
    """Check the requirements of an installation of LOOPS by the chart, item by item, and the installation if it exists.

    LOOPS are the paths of loop files, or names of lines. Each item is ok, missing or unknown; an unknown one could not be looked at, often
    because this account may not. For a missing item, the remedy is a command or a page. Of Secrets, only names and keys are shown. One
    object is written to each bucket and deleted, to see whether conditional writes work. Exits with code 1 if an item would stop an
    installation.
    """
    from ratchet.flows.composition.cluster_doctor import examine_installation

    installation = open_installation()
    paths = [named_loop(installation, one, as_json).absolute() for one in loops]
    found = examine_installation(paths, values, release, namespace, context, datetime.now(UTC))
    stops = [one for one in found if one.stops]
    if as_json:
        print_json([asdict(one) for one in found])
    else:
        for one in found:
            show(f"{one.state:8}", fg={"missing": "red", "unknown": "yellow"}.get(one.state) if one.state != "ok" else None, newline=False)
            show(f"{one.about}: {one.text}")
            if one.remedy:
                show(f"{'':8}  {one.remedy}")
        counts = {state: sum(one.state == state for one in found) for state in ("ok", "missing", "unknown")}
        show(f"{', '.join(f'{count} {state}' for state, count in counts.items())}; {len(stops)} would stop an installation")
    sys.exit(1 if stops else 0)
