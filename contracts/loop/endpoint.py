"""The endpoint of a model that the line asks and does not serve: that of a judge or of a teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from ratchet.contracts.model import Frozen

Name = Annotated[str, Field(min_length=1, max_length=200)]


class ModelEndpoint(Frozen):
    """Address, model and key of an OpenAI-compatible API."""

    url: str = Field(pattern=r"^https?://[^/@\s]+(/[^@\s?#]*)?$")
    """Base URL of an OpenAI-compatible API, for example `http://localhost:8000/v1`. Requests go to `/chat/completions` below it."""
    model: Name
    """Name of the model in the requests."""
    key_env: Name | None = None
    """Name of the environment variable with the API key. None, and no `key_file`: requests without a key."""
    key_file: str | None = None
    """Absolute path of a file with the API key."""

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if self.key_env is not None and self.key_file is not None:
            raise ValueError("key_env and key_file exclude each other")
        if self.key_file is not None and not Path(self.key_file).is_absolute():
            raise ValueError("key_file must be an absolute path")
        return self
