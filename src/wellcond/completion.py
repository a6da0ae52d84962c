"""`wellcond completion bash`: what the Tab key offers, as a script for the shell. Floor 9; imports no torch.

The words are read off the help of each verb, so there is nothing to keep up to date here; the script holds them all,
so Tab starts no Python. A word that is no option is a file, but for the first one after some verbs.

bash and zsh share a function that sets `offer` from the place in the line; fish has a command for each word.
"""

import contextlib
import dataclasses
import io
import re
from importlib import import_module
from typing import NamedTuple, get_args, get_type_hints

from . import config, parsing, wording
from .config import CompletionConfig
from .recipes import RECIPES
from .verbs import VERBS


class Words(NamedTuple):
    """What may follow a verb."""

    first: tuple[str, ...]  # right after it; none: files
    options: dict[str, str]  # name → what it takes, "" for a flag


def run(asked: CompletionConfig) -> None:
    print(script(asked.shell), end="")


def script(shell: str) -> str:
    table = {verb: words(verb) for verb in VERBS}
    return _fish(table) if shell == "fish" else _shared(table) + _OWN[shell]


def words(verb: str) -> Words:
    """Options from the verb's help; the first word from its config, where it is one of a few, or from the recipes."""
    kind = getattr(config, VERBS[verb].config) if VERBS[verb].config else None
    first: tuple[str, ...] = tuple(RECIPES) if VERBS[verb].module.startswith("recipes.") else ()
    with contextlib.redirect_stdout(io.StringIO()) as shown, parsing.wide(100):
        if kind is not None:
            parsing.parse(kind, verb, ["--help"])
        else:
            import_module(f"{__package__}.{VERBS[verb].module}").parse([*first[:1], "--help"])
    if kind is not None and dataclasses.fields(kind)[0].default is dataclasses.MISSING:
        given = get_args(get_type_hints(kind)[dataclasses.fields(kind)[0].name])
        first = tuple(word for word in given if isinstance(word, str))  # of a Literal
    return Words(first, wording.options(shown.getvalue()))


def choices(metavar: str) -> list[str]:
    """The values that an option takes, where they are few.

    >>> choices("{svd,dct}"), choices("{a,b} ..."), choices("PATH")
    (['svd', 'dct'], ['a', 'b'], [])
    """
    found = re.fullmatch(r"{([^{}]*)}(?: \.\.\.)?", metavar)
    return found[1].split(",") if found else []


def _shared(table: dict[str, Words]) -> str:
    one, many = {}, {}  # options that take one of a few values, or several of them
    for verb, words in table.items():
        for option, metavar in words.options.items():
            if values := choices(metavar):
                (many if metavar.endswith("...") else one)[f"{verb} {option}"] = values
    return f"""#compdef wellcond
# written by wellcond completion; bash or zsh

_wellcond_offer() {{  # place in the line, verb, word before, option before, this word; an empty offer means files
  offer=
  if [[ $1 == 1 ]]; then offer='{" ".join(table)} --help --version'; return; fi
  if [[ $5 == -* ]]; then
    case $2 in
{_cases({verb: list(words.options) for verb, words in table.items()})}
    esac
    return
  fi
  case "$2 $3" in
{_cases(one)}
  esac
  [[ -n $offer ]] && return
  case "$2 $4" in
{_cases(many)}
  esac
  if [[ -z $offer && $1 == 2 ]]; then
    case $2 in
{_cases({verb: words.first for verb, words in table.items() if words.first})}
    esac
  fi
}}
"""


def _cases(offers: dict[str, list[str]] | dict[str, tuple[str, ...]]) -> str:
    return "\n".join(f"    '{case}') offer='{' '.join(offered)}' ;;" for case, offered in offers.items())


_OWN = {
    "bash": """
_wellcond() {
  local offer option= i current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}
  if [[ $current == '=' ]]; then current=; fi  # bash cuts --method=svd into three words
  if [[ $before == '=' ]]; then before=${COMP_WORDS[COMP_CWORD-2]}; fi
  for ((i = 2; i < COMP_CWORD; i++)); do [[ ${COMP_WORDS[i]} == --* ]] && option=${COMP_WORDS[i]}; done
  _wellcond_offer "$COMP_CWORD" "${COMP_WORDS[1]}" "$before" "$option" "$current"
  COMPREPLY=($(compgen -W "$offer" -- "$current"))
}
complete -o default -F _wellcond wellcond
""",
    "zsh": """
_wellcond() {
  local offer option= word
  for word in "${(@)words[3,CURRENT-1]}"; do [[ $word == --* ]] && option=$word; done
  _wellcond_offer $((CURRENT - 1)) "${words[2]}" "${words[CURRENT-1]}" "$option" "${words[CURRENT]}"
  if [[ -n $offer ]]; then compadd -- ${=offer}; else _files; fi
}
if [[ ${funcstack[1]} == _wellcond ]]; then _wellcond "$@"; else compdef _wellcond wellcond; fi
""",
}


def _fish(table: dict[str, Words]) -> str:
    typed = "(commandline -opc)"  # the words before this one, the command itself first
    lines = ["# written by wellcond completion; fish"]
    lines += [f"complete -c wellcond -n 'test (count {typed}) -eq 1' -f -l {option}" for option in ("help", "version")]
    for verb, words in table.items():
        summary = VERBS[verb].summary.replace("'", "\\'")
        lines.append(f"complete -c wellcond -n 'test (count {typed}) -eq 1' -f -a {verb} -d '{summary}'")
        after = f"string match -q {verb} {typed}[2]"
        if words.first:
            place = f"'{after}; and test (count {typed}) -eq 2'"
            lines.append(f"complete -c wellcond -n {place} -f -a '{' '.join(words.first)}'")
        for option, metavar in words.options.items():
            values = choices(metavar)
            taken = f" -x -a '{' '.join(values)}'" if values else " -r" if metavar else ""
            lines.append(f"complete -c wellcond -n '{after}' -l {option[2:]}{taken}")
    return "\n".join(lines) + "\n"
