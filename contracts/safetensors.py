"""Headers of safetensors files: https://github.com/huggingface/safetensors#format (8 bytes of header length, JSON, tensors)."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from ratchet.contracts.errors import Permanent

HEADER_BYTES = 100_000_000
"""Maximum length of a header, as in the reference implementation."""


@dataclass(frozen=True)
class Tensor:
    """Entry of a header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    """First byte of the tensor, counted from the end of the header."""
    end: int
    """First byte after the tensor."""


def read_header(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name.

    Raises Permanent if the file is not a regular file, the header is too long or invalid, or the tensors do not fill the rest of the
    file. Propagates OSError.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        there = os.fstat(file.fileno())
        if not stat.S_ISREG(there.st_mode):
            raise Permanent(f"{path} is not a regular file; replace it by the safetensors file")
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= min(HEADER_BYTES, there.st_size - 8):
            raise Permanent(
                f"{path} is not a valid safetensors file: its header has {length} bytes, but at most "
                f"{max(0, min(HEADER_BYTES, there.st_size - 8))} are possible; write the file again"
            )
        data = file.read(length)
    try:
        header = json.loads(data)
        tensors = {name: _tensor(entry) for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Permanent(f"{path} has an invalid safetensors header ({type(error).__name__}); write the file again") from None
    ends = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin != ends:
            raise Permanent(f"{path}: the tensor {name!r} does not begin where the previous one ends; write the file again")
        ends = tensor.end
    if tensors and 8 + length + ends != there.st_size:
        raise Permanent(f"{path} has {there.st_size} bytes, but its header describes {8 + length + ends}; write the file again")
    return tensors


def _tensor(entry: dict[str, object]) -> Tensor:
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2:
        raise TypeError("dtype, shape or data_offsets")
    if any(type(number) is not int or number < 0 for number in (*shape, *offsets)) or offsets[0] > offsets[1]:
        raise ValueError("a size or an offset is not valid")
    return Tensor(dtype, tuple(shape), offsets[0], offsets[1])
