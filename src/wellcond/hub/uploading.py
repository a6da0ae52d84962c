"""To the Hugging Face hub, by its own library. Only the files that were written go, whatever else is in the folder."""

from pathlib import Path

from ..training.fetching import in_words
from .folder import FILES


def check_name(name: str) -> None:
    """ValueError if the hub would take no such name."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ValueError(f"name is {name!r}: {in_words(error)}") from None


def address(name: str) -> str:
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{name if '/' in name else f'YOU/{name}'}"


def upload(folder: Path, name: str, *, private: bool) -> str:
    """Make the repository if there is none, and upload the folder as one commit; returns its address."""
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        repository = api.create_repo(name, private=private, exist_ok=True).repo_id
        api.upload_folder(
            repo_id=repository, folder_path=folder, allow_patterns=list(FILES), commit_message="wellcond push"
        )
    except Exception as error:  # of the network, of its libraries, of the hub
        raise ValueError(
            f"{name!r} was not uploaded: {in_words(error)}; the folder {str(folder)!r} is whole, and the same command "
            "tries again"
        ) from None
    return address(repository)
