"""Settings of the model servers, the router and the receiver."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ratchet.contracts.model import Frozen


class ServingSettings(Frozen):
    """Settings for serving and routing the models of the line."""

    kind: str = "embedded"
    """Entry point name of an installed server (group `ratchet.servers`)."""
    router_port: int = Field(default=0, ge=0, le=65535)
    """TCP port of the router. 0: any free port, which is stored in RATCHET_HOME and reused."""
    receiver_port: int = Field(default=0, ge=0, le=65535)
    """TCP port of the OTLP/HTTP receiver on the loopback interface. 0: any free port, which is stored in RATCHET_HOME and reused."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the server, which validates them."""
    adapters: Literal["merged", "own server", "shared"] = "merged"
    """Form of a candidate whose recipe has `lora`. merged: the whole model with the adapter merged into its weights. own server: the
    adapter is the version, and its server loads it over the base model, whose digest is pinned. shared: the adapter is the version, and it
    is loaded into the champion's running process; no method may train an adapter over another model than the one that the process has
    loaded. A candidate whose run trained all weights, or whose trainer publishes no adapter, is the whole model in each case."""
    router: str = "local"
    """Entry point name of an installed router (group `ratchet.routers`). local: a router process on this machine."""
    router_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the router, which validates them."""
    drain: float = Field(default=120, ge=0, le=900)
    """Maximum seconds for which the server of a version without traffic keeps running, so that it can finish its answers. It stops earlier
    if the router reports that no request to it is in flight."""
