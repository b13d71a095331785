"""Runs the model server process.

`python -m ratchet.local.serve MODEL_FOLDER --name NAME … [--adapter FOLDER] [--share] [--port N] [--threads N]`
"""

from __future__ import annotations

import gc
from pathlib import Path

import click

from ratchet.runtime.http_limits import HttpLimits
from ratchet.runtime.serving.asgi import run_app


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--name", "names", required=True, multiple=True, help="Model name that clients must send: one of these.")
@click.option("--adapter", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Adapter to load over the model in FOLDER.")
@click.option("--share", is_flag=True, help="Open the endpoints that load and unload adapters of other versions.")
@click.option("--port", default=0, help="0: any free port.")
@click.option("--host", default="127.0.0.1", help="Address on which to listen. In a pod, 0.0.0.0.")
@click.option("--threads", default=2, help="CPU threads for one batch.")
def main(folder: Path, names: tuple[str, ...], adapter: Path | None, share: bool, port: int, host: str, threads: int) -> None:
    """Serve the model in FOLDER until SIGTERM."""
    gc.disable()  # the imports create a million permanent objects, which each collection would visit: 1 s of CPU of the start
    from ratchet.local.serve.app import build_app
    from ratchet.local.serve.generate import Model

    app = build_app(Model(folder, threads, adapter), names, folder if share else None)
    gc.freeze()
    gc.enable()
    run_app(app, port, "the model server", "use --port 0 for any free port", HttpLimits(), host)


if __name__ == "__main__":
    main()
