"""Settings of where heavy work that only computes is done."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import model_validator

from ratchet.contracts.loop.field_types import Positive
from ratchet.contracts.model import Frozen

_ADDRESS = re.compile(r"(?:ray://)?(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\]):(\d{1,5})")


class ComputeSettings(Frozen):
    """Where the heavy work is done that only computes: decoding and masking of batches, signatures of prompts, and scores of logged
    answers. It changes no result. Of an open cycle, the section of the present loop file counts."""

    engine: Literal["inline", "processes", "ray"] = "inline"
    """inline: in the service itself. processes: in worker processes on this machine. ray: as tasks of a Ray cluster, which get the records
    in clear (extra `ray`)."""
    workers: Positive = 2
    """Number of parts that are worked on at the same time: processes, or tasks of the cluster. Each needs one core, and about half a
    gigabyte of memory for a large batch. inline ignores it."""
    address: str | None = None
    """Address of the Ray cluster. `ray://HOST:PORT` is its client server (port 10001 by default), HOST:PORT its head (6379), which needs a
    Ray node on this machine. Required for ray, not allowed otherwise."""

    @model_validator(mode="after")
    def _address_of_a_cluster(self) -> ComputeSettings:
        if (self.engine == "ray") != (self.address is not None):
            raise ValueError(
                'engine "ray" needs the address of the cluster, for example address = "ray://HOST:10001"'
                if self.engine == "ray"
                else f'engine "{self.engine}" takes no address; remove it, or set engine = "ray"'
            )
        match = _ADDRESS.fullmatch(self.address) if self.address is not None else None
        if self.address is not None and (match is None or not 0 < int(match[1]) < 65536):
            raise ValueError(f"address {self.address!r} is not of the form ray://HOST:PORT or HOST:PORT")
        return self
