"""From the hub to here: files of a repository in the hub's cache, and its errors in our words."""

from pathlib import Path

from wellcond.training.exported import EXPORT, WEIGHTS, is_exported

HUB = "hf:"  # before a name of the hub, as for data


def fetch(name: str) -> Path:
    """The folder of OWNER/NAME, perhaps @REVISION, of the hub, in its cache; ValueError with the reason."""
    repository, _, revision = name.partition("@")
    files = fetched(repository, revision or None, [EXPORT, WEIGHTS])
    if not is_exported(files):
        raise ValueError(
            f"{name!r} on the hub has no {EXPORT}, so it is not from wellcond push; "
            f"a model of timm is timm.create_model('hf-hub:{name}', pretrained=True)"
        )
    return files


def fetched(repository: str, revision: str | None, names: list[str]) -> Path:
    """These files of a repository, as far as it has them."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=names))
    except Exception as error:  # of the network, of its libraries, of the hub
        raise ValueError(f"{repository!r} could not be had from the hub: {in_words(error)}") from None


def in_words(error: Exception) -> str:
    """What went wrong between here and the hub, and what to do."""
    from huggingface_hub import errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError):
        return "it is gated; ask for access on its page, then say hf auth login"
    if isinstance(error, errors.RepositoryNotFoundError) or status == 404:  # the hub answers strangers with 401
        return "it is not there, or is private; check the name, or say hf auth login"
    if isinstance(error, errors.LocalTokenNotFoundError) or status == 401:
        return "there is no token, or one that is not valid; say hf auth login, or set HF_TOKEN"
    if status == 403:
        return "the token may not do that; make one with write access, or choose a name of your own"
    if isinstance(error, errors.HFValidationError):
        return f"{first_line(error)}; a name is OWNER/NAME of letters, digits, '-', '_' and '.'"
    if status is None:
        return f"it cannot be reached ({first_line(error)}); check the network"
    return first_line(error)


def first_line(error: Exception) -> str:
    """What a library said, short enough for a sentence of ours.

    >>> first_line(OSError("Name or service not known.\\nTraceback …"))
    'Name or service not known'
    """
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:150].rstrip(" .:")
