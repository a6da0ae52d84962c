"""Configs of the verbs about the command itself: doctor, completion."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """What is installed, found and chosen here: versions, GPU, eigensolver, caches, extras; what is wrong; remedies.

    Exit status: 0 wellcond can work, 1 it cannot (a package that it needs is missing, too old or broken).
    """

    json: bool = False
    """Print JSON instead."""


@dataclass(frozen=True, kw_only=True)
class CompletionConfig:
    """A script for your shell, with which the Tab key completes verbs, recipes, claims, options and their values.

    bash: wellcond completion bash > ~/.local/share/bash-completion/completions/wellcond

    zsh: wellcond completion zsh > a file _wellcond in a folder of $fpath, before compinit

    fish: wellcond completion fish > ~/.config/fish/completions/wellcond.fish
    """

    shell: Literal["bash", "zsh", "fish"]
    """Of which shell: bash, zsh or fish."""
