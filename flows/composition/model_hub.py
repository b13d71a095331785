"""Models by name, from a hub that speaks Hugging Face's API: looked up at a fixed commit, and downloaded with every file verified.

Only files that a trained model may consist of are downloaded (`PUBLISHED`), and texts of licences. A token is read from an environment
variable and never stored. The address is that of huggingface_hub (`HF_ENDPOINT`).

Source: https://huggingface.co/docs/hub/api
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ratchet.contracts.errors import ConfigError, Permanent, Retryable
from ratchet.contracts.model import PUBLISHED
from ratchet.runtime.file_errors import unwritable

if TYPE_CHECKING:
    from huggingface_hub import HfApi

PREFIX = "hub:"
TOKEN = "HF_TOKEN"
"""Environment variable with the token, by default."""
_NAME = re.compile(r"hub:(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_PLAIN = re.compile(r"[\w .+/-]{1,200}")
"""Names of files that are downloaded."""
_LICENCE = re.compile(r"(licen[cs]e|copying|notice|use_policy)[^/]*", re.IGNORECASE)
_INSTALL = "a model of a hub needs the package huggingface-hub; run pip install 'ratchet[hub]'"


Answer = TypeVar("Answer")


class HubName(NamedTuple):
    """Name of a model on a hub: `hub:ORGANIZATION/MODEL@REVISION`."""

    repository: str
    revision: str
    """Commit, branch or tag."""


class HubFile(NamedTuple):
    """A file of a model at its commit."""

    name: str
    size: int
    """In bytes."""
    sha256: str | None
    """Digest that the hub states; None for small files, which it identifies by their git object."""
    blob: str | None
    """Git object id (SHA-1) of a file without `sha256`."""


class HubModel(NamedTuple):
    """A model on a hub at one commit."""

    repository: str
    commit: str
    licence: str
    """Licence that the model's page states, or `unknown`."""
    link: str
    """Where the licence or the terms can be read; empty if the page states none."""
    gated: str
    """How access is given: `auto` or `manual` if the owner asks for consent, otherwise empty."""
    files: tuple[HubFile, ...]
    """Files to download, by name."""
    left_out: tuple[str, ...]
    """Files that are not downloaded, because no trained model may contain them."""

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(one.size for one in self.files)


def hub_name(text: str) -> HubName:
    """Parse `hub:ORGANIZATION/MODEL@REVISION`. Raises ConfigError if it has another form, or no revision."""
    found = _NAME.fullmatch(text)
    if found is None:
        raise ConfigError(f"{text!r} is not of the form hub:ORGANIZATION/MODEL@REVISION")
    if not found["revision"]:
        raise ConfigError(
            f"{text} names no revision, and the model behind a name can change: add @ and a commit, a tag or a branch, for example "
            f"{text}@main; the commit is recorded"
        )
    return HubName(found["repository"], found["revision"])


def look_up(name: HubName, token_variable: str = TOKEN) -> HubModel:
    """Return the model at the commit to which the revision points now.

    Raises ConfigError if the package is missing, Permanent if the model or the revision does not exist, is not accessible, or has no
    safetensors weights, and Retryable if the hub does not answer.
    """
    return _asked(
        name, token_variable, lambda hub: _model_of(name, hub.model_info(name.repository, revision=name.revision, files_metadata=True))
    )


def _model_of(name: HubName, found: Any) -> HubModel:
    """Return what the hub says about a model. Raises Permanent if it has no safetensors weights or no commit."""
    files, left_out = list[HubFile](), list[str]()
    for one in found.siblings or ():
        path = PurePosixPath(one.rfilename)
        wanted = path.suffix in PUBLISHED or (len(path.parts) == 1 and _LICENCE.fullmatch(path.name))
        if wanted and _is_plain(one.rfilename) and not _other_weights(path):
            files.append(HubFile(one.rfilename, int(one.size or 0), one.lfs.sha256 if one.lfs else None, one.blob_id))
        else:
            left_out.append(one.rfilename)
    if not any(one.name.endswith(".safetensors") for one in files):
        raise Permanent(
            f"{name.repository} has no *.safetensors weights at {name.revision}; other weights are pickles, which can run code. "
            "Convert the model with save_pretrained, and adopt the folder"
        )
    if found.sha is None or not _COMMIT.fullmatch(found.sha):
        raise Permanent(f"the hub states no commit for {name.repository} at {name.revision}, so the model cannot be pinned")
    card: dict[str, Any] = found.card_data.to_dict() if found.card_data else {}
    licence = _line(card.get("license_name") or card.get("license") or "unknown")
    gated = str(found.gated) if found.gated else ""
    return HubModel(
        name.repository, found.sha, licence, _line(card.get("license_link") or ""), gated, tuple(sorted(files)), tuple(sorted(left_out))
    )


def _is_plain(name: str) -> bool:
    """Whether a file has a plain name inside the model's folder, and is not in the folder that the library uses itself."""
    path = PurePosixPath(name)
    return _PLAIN.fullmatch(name) is not None and not path.is_absolute() and ".." not in path.parts and path.parts[:1] != (".cache",)


def _line(value: object) -> str:
    """Return a text of the hub as one line of at most 200 printable characters."""
    return "".join(one if one.isprintable() else " " for one in str(value))[:200].strip()


def _other_weights(path: PurePosixPath) -> bool:
    """Whether a file is a copy of the weights in a subfolder, as some models have beside the one that transformers opens."""
    return len(path.parts) > 1 and path.suffix == ".safetensors"


def download(model: HubModel, folder: Path, progress: Callable[[str, int, int], object], token_variable: str = TOKEN) -> Path:
    """Download the model's files into `folder`, verify each, and return the folder.

    A file that is there and has the right digest is not downloaded again, so an interrupted download goes on. Raises Permanent if a file
    has not the size and digest that the hub states, and Retryable if the hub does not answer.
    """
    done, name = 0, HubName(model.repository, model.commit)
    for file in model.files:
        place = folder / file.name
        if not (place.is_file() and _is(place, file)):
            progress(f"downloading {model.repository} {file.name}", done, model.size)
            _asked(name, token_variable, lambda hub, file=file: _fetched(hub, model, file, folder))  # type: ignore[misc]
            if not _is(place, file):
                place.unlink(missing_ok=True)
                raise Permanent(f"{model.repository} {file.name}: the downloaded file has not the digest that the hub states; try again")
        done += file.size
        progress(f"downloading {model.repository}", done, model.size)
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the library's own notes about the downloads
    return folder


def _fetched(hub: HfApi, model: HubModel, file: HubFile, folder: Path) -> None:
    from tqdm.auto import tqdm

    class Bounded(tqdm):  # type: ignore[misc]
        """Ends a download that is longer than the hub has stated."""

        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **{**named, "disable": True})
            self.received = 0

        def update(self, n: float | None = 1) -> bool | None:
            self.received += int(n or 0)
            if self.received > file.size:
                raise Permanent(
                    f"{model.repository} {file.name} is longer than the {file.size} bytes that the hub states; nothing more is read"
                )
            return None

    hub.hf_hub_download(model.repository, file.name, revision=model.commit, local_dir=folder, tqdm_class=Bounded)


def _is(place: Path, file: HubFile) -> bool:
    """Whether a file has the size and the digest that the hub states."""
    if place.stat().st_size != file.size:
        return False
    with place.open("rb") as opened:
        if file.sha256:
            return hashlib.file_digest(opened, "sha256").hexdigest() == file.sha256
        digest = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)  # the id of a git object
        while part := opened.read(1 << 20):
            digest.update(part)
    return file.blob is None or digest.hexdigest() == file.blob


def _asked(name: HubName, token_variable: str, ask: Callable[[HfApi], Answer]) -> Answer:
    """Ask the hub, and translate its errors."""
    try:
        from huggingface_hub import HfApi, errors
    except ImportError as error:
        raise ConfigError(_INSTALL) from error

    where = f"{name.repository} at {name.revision}"
    no_answer: Any = (errors.HfHubHTTPError.__mro__[1], OSError)  # the first one: HTTPError of the HTTP library of the release
    try:
        # The token of the user's own login is not taken: the caller names the variable with the token.
        return ask(HfApi(os.environ.get("HF_ENDPOINT") or None, os.environ.get(token_variable) or False, library_name="ratchet"))
    except errors.OfflineModeIsEnabled as error:
        raise ConfigError("HF_HUB_OFFLINE is set, so no hub is asked; unset it, or adopt a folder") from error
    except errors.GatedRepoError as error:
        raise Permanent(
            f"{where}: the owner asks for consent to terms. Accept them on the model's page, and set {token_variable} to a token that may "
            "read it"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise Permanent(f"{name.repository} has no revision {name.revision}") from error
    except errors.RepositoryNotFoundError as error:
        raise Permanent(f"{name.repository} does not exist, or {token_variable} is not a token that may read it") from error
    except no_answer as error:  # before the next clause, because an error of the HTTP library may also be a ValueError
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ValueError):
            raise unwritable("download the model", error) from error
        raise Retryable(f"the hub does not answer for {where}: {type(error).__name__}; try again later") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        address = os.environ.get("HF_ENDPOINT") or "the default address"
        raise Permanent(f"the answer of the hub about {where} cannot be read ({type(error).__name__}); is {address} a hub?") from error
