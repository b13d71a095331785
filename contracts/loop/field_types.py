"""Types of settings that several sections of a loop file use: shares, numbers and times with their bounds, and names."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Share = Annotated[float, Field(ge=0, le=1)]
Percent = Annotated[float, Field(gt=0, le=100)]
Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0)]
Days = Annotated[float, Field(gt=0)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]
