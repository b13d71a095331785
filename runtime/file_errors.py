"""Turns an error of the operating system about a file into the error of Ratchet that states the required reaction."""

from __future__ import annotations

import errno
from typing import Final

from ratchet.contracts.errors import Retryable, Unwritable

_LASTING: Final = frozenset(
    {errno.EACCES, errno.ENOENT, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP}
)
"""Errors that last until somebody changes the permissions or the place. A full disk is none of them."""
_IN_THE_WAY: Final = frozenset({errno.ENOTDIR, errno.EEXIST})
_REMEDY: Final = "make the folder writable for this user, or set RATCHET_HOME to a writable folder"


def unwritable(what: str, error: OSError, remedy: str = _REMEDY) -> Retryable:
    """Return the error for a failed write. `what` names it, for example `write /path/file`; `remedy` is what the operator can do.

    It is Unwritable if the problem lasts until the operator acts, and otherwise Retryable, for example if the disk is full.
    """
    text = "a file is where a folder must be" if error.errno in _IN_THE_WAY else error.strerror or type(error).__name__
    if error.errno in _LASTING:
        return Unwritable(f"cannot {what}: {text}; {remedy}")
    return Retryable(f"cannot {what}: {text}; free space, then try again")
