"""An exported folder on the Hugging Face hub.

The token comes from HF_TOKEN or from `hf auth login`. It is read by huggingface_hub alone and
stands in no message, file or record.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,  # pyright: ignore[reportPrivateImportUsage] of the library that it uses
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import validate_repo_id

from bas_opd.errors import BasOpdError, ConfigError


class HubError(BasOpdError, OSError):
    """The hub cannot be reached, or refuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A model on the hub that can be written to."""

    name: str
    is_private: bool
    exists: bool


def find_destination(name: str, *, public: bool = False) -> Destination:
    """Check name, token and hub before anything is computed or sent."""
    try:
        validate_repo_id(name)
        is_valid = re.fullmatch(r"[^/]+/[^/]+", name) is not None
    except HFValidationError:
        is_valid = False
    if not is_valid:
        raise ConfigError(
            f"--push takes OWNER/NAME, such as a-user/learned25, and not {name!r}. Names have "
            "letters, digits, single hyphens, dots and underscores."
        )
    with _explained(name):
        if huggingface_hub.get_token() is None:
            raise ConfigError(
                f"There is no token to push {name} with. Run `hf auth login`, or set HF_TOKEN."
            )
        api = huggingface_hub.HfApi()
        api.whoami()
        try:
            found = api.model_info(name)
        except RepositoryNotFoundError:
            return Destination(name=name, is_private=not public, exists=False)
    if not found.private and not public:
        raise ConfigError(
            f"{name} exists and is public, so a push would publish the model. Add --public if "
            "that is meant, or push to another name."
        )
    return Destination(name=name, is_private=bool(found.private), exists=True)


def push(folder: Path, to: Destination, *, say: Callable[[str], None] = lambda _: None) -> str:
    """Upload the files of an exported folder, after naming them, and return their address."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    size = sum(path.stat().st_size for path in files)
    seen = "private" if to.is_private else "public"
    names = ", ".join(path.relative_to(folder).as_posix() for path in files)
    say(
        f"Uploading {len(files)} files ({size / 1e6:,.1f} MB) to the "
        f"{'existing' if to.exists else 'new'} {seen} model {to.name}: {names}."
    )
    with _explained(to.name, _upload_command(folder, to)):
        api = huggingface_hub.HfApi()
        if not to.exists:
            api.create_repo(to.name, private=to.is_private)
        api.upload_folder(
            repo_id=to.name, folder_path=folder, commit_message="Upload with bas-opd export"
        )
        return f"{api.endpoint}/{to.name}"


def _upload_command(folder: Path, to: Destination) -> str:
    """Return how to push an exported folder by hand; the option keeps a new model private."""
    words = ["hf", "upload", to.name, str(folder), *(["--private"] if to.is_private else [])]
    return f"The model is in {folder}; `{shlex.join(words)}` pushes it."


@contextmanager
def _explained(name: str, again: str = "Then push again.") -> Iterator[None]:
    """Turn failures of the hub into sentences that end with what to do then."""
    try:
        yield
    except OfflineModeIsEnabled as error:
        raise HubError(
            f"{name} was not pushed: HF_HUB_OFFLINE is set. Unset it. {again}"
        ) from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        reason = {
            401: "the hub does not accept the token. Run `hf auth login`, or set another HF_TOKEN",
            403: "the token may not write there. Use one with write access to its owner",
        }.get(status, f"the hub answered with status {status}. Look at its status page")
        raise HubError(f"{name} was not pushed: {reason}. {again}") from error
    except (HTTPError, ConnectionError) as error:
        raise HubError(
            f"{name} was not pushed: the hub at {huggingface_hub.constants.ENDPOINT} cannot be "
            f"reached ({type(error).__name__}). Check the network. {again}"
        ) from error
