"""`ratchet k8s`: what a line's cluster must hold, printed, and what would stop its gangs there, looked for."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from flows.cli.show import json_option, loop_argument, print_json
from flows.config.home import Home
from flows.config.load import load_loop


@click.group()
def k8s() -> None:
    """Prepare and examine the Kubernetes cluster that a loop file names."""


@k8s.command()
@loop_argument
@click.option("--admin", "part", flag_value="admin", help="Only what an administrator applies once.")
@click.option("--gang", "part", flag_value="gang", help="Only what the service applies for each gang, as samples.")
@click.option("--eks", metavar="NAME", help="EKS cluster, where nodes are made on AWS: subnets and security groups carry its tag.")
@click.option("--ami", metavar="FAMILY@VERSION", help="Image of AWS nodes, pinned, such as al2023@v20260901.")
@click.option("--node-role", metavar="NAME", help="IAM role of AWS nodes; default KarpenterNodeRole-CLUSTER.")
@click.option("--placement-group", metavar="NAME", help="EC2 placement group: a gang's nodes near each other.")
@click.option("--reservation", multiple=True, metavar="ID", help="EC2 capacity reservation; may be given several times.")
@click.option("--storage-class", metavar="NAME", help="Class of the shared volume; many nodes must be able to write it.")
@click.option("--size", metavar="QUANTITY", help="Of the shared volume; default 1Ti.")
@click.option("--judge", metavar="FOLDER", help="Model of judges, on the shared volume; they are rendered too.")
@click.option("--vllm", metavar="IMAGE", help="vLLM's image, for the judges.")
def render(loop: Path, part: str | None, **words: str | None) -> None:
    """Print what LOOP asks of its cluster, in the order of applying, with a sample of each gang; changes nothing."""
    from flows.engine.wiring import render_cluster

    click.echo(render_cluster(load_loop(loop), loop.absolute().parent, Home.from_environment(), part or "all", **words), nl=False)


@k8s.command()
@loop_argument
@click.option("--seconds", default=2.0, show_default=True, help="Between two looks.")
@click.option("--once", is_flag=True, help="Look once and end.")
def guard(loop: Path, seconds: float, once: bool) -> None:
    """Watch over the gangs of LOOP's namespace and mend those that are half alive or half present.

    The service does so itself while it waits for a job; this is for its absence. It never submits anything.
    """
    from flows.engine.wiring import guard_cluster

    for words in guard_cluster(load_loop(loop), loop.absolute().parent, Home.from_environment(), seconds, once):
        click.echo(words)


@k8s.command()
@loop_argument
@click.argument("job", required=False)
@click.option("--lines", default=20, show_default=True, help="From the end of each log.")
@click.option("--follow", is_flag=True, help="Go on until the job has ended.")
def logs(loop: Path, job: str | None, lines: int, follow: bool) -> None:
    """Print what JOB, or LOOP's newest job, wrote last: its pods that are there, and its trainers, whose logs lie in the run folder."""
    from flows.engine.wiring import job_words

    for words in job_words(load_loop(loop), loop.absolute().parent, Home.from_environment(), job, lines, follow):
        click.echo(words)


@k8s.command()
@loop_argument
@json_option
def lint(loop: Path, as_json: bool) -> None:
    """Say what would stop LOOP's gangs on the live cluster, with what to do. Exit code 1 where something would; changes nothing."""
    from flows.engine.wiring import lint_cluster

    found = lint_cluster(load_loop(loop), loop.absolute().parent, Home.from_environment())
    if as_json:
        print_json([dict(zip(("level", "about", "text", "remedy"), one, strict=True)) for one in found])
    else:
        for level, about, text, remedy in found:
            click.secho(f"{level:4} ", fg="red" if level == "stop" else None, nl=False)
            click.echo(f"{about}: {text}" + (f"; {remedy}" if remedy else ""))
        if not any(level == "stop" for level, *_ in found):
            click.echo("nothing is known that would stop a gang")
    sys.exit(1 if any(level == "stop" for level, *_ in found) else 0)
