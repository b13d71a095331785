"""Numbers in settings: their bounds, and the base class of settings, which rejects what is no number."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from ratchet.contracts.model import Frozen

Positive = Annotated[int, Field(gt=0)]
Rate = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class Numbers(Frozen):
    """Base class of settings. Rejects NaN and infinite numbers, and booleans in fields that are not boolean."""

    model_config = ConfigDict(allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch(cls, value: Any, info: ValidationInfo) -> Any:
        """Reject booleans in other fields. Pydantic would convert True to 1."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError(f"must not be a boolean, found {str(value).lower()}")
        return value
