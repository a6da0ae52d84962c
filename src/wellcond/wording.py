"""tyro's text in our words: its help folded to the terminal and read for options, its framed errors as one sentence.

Floor 0: text in, text out; it imports nothing of ours, so every room may use it.
"""

import difflib
import re
import textwrap

_OPTION = re.compile(r"^[│| ]{0,4}(?:-h, )?(--[a-z].*)$", re.MULTILINE)
_NAMES = re.compile(r"(?:^|, )(--[a-z][a-z0-9.-]*)")
_METAVAR = re.compile(r"--[a-z][a-z0-9.-]* ([^\s,-].*?)(?: {2,}|[ │]*$)")


def without_colour(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def folded(text: str, columns: int) -> str:
    """The help with its long lines broken between words; tyro folds only what is in its frames.

    >>> print(folded("usage: wellcond x [--one INT] [--two INT]\\n│ frames stay as they are, however long │", 24))
    usage: wellcond x [--one
      INT] [--two INT]
    │ frames stay as they are, however long │
    """
    lines = []
    for line in text.splitlines():
        plain = without_colour(line)
        if len(plain) > columns and plain[0] not in "│╭╰|+":
            indent = "  " if plain.startswith("usage:") else ""
            line = textwrap.fill(
                plain, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
            )
        lines.append(line)
    return "\n".join(lines)


def options(text: str) -> dict[str, str]:
    """The long options in tyro's help and what each takes; "" where it is a flag.

    >>> options("│ -h, --help   this │\\n│ --method {svd,dct}   │\\n│ --on, --no-on │\\n│ --out PATH  where --to │")
    {'--help': '', '--method': '{svd,dct}', '--on': '', '--no-on': '', '--out': 'PATH'}
    """
    found: dict[str, str] = {}
    for row in _OPTION.findall(without_colour(text)):
        taken = _METAVAR.match(row)
        found |= dict.fromkeys(_NAMES.findall(row), taken[1] if taken else "")
    return found


def first_paragraph(framed: str) -> str:
    """The text of tyro's frame up to the rule under it; without UTF-8 the frame is a title over rules of "-".

    >>> first_paragraph("╭─ Value ─╮\\n│ bad  │\\n│  x   │\\n│ ──── │\\n│ help │\\n╰──────╯")
    'bad x'
    >>> first_paragraph("  Value\\n  -----\\n  bad\\n  -----\\n  help")
    'bad'
    """
    rows = [line.strip().strip("│").strip() for line in without_colour(framed).splitlines()]
    text: list[str] = []
    for row in rows[1:]:
        if not set(row) <= set("─-╰╯ "):
            text.append(row)
        elif text:
            break
    message = re.sub(r"\s*\(required\)", "", " ".join(" ".join(text).split()))
    return message.rstrip(".") or "the arguments could not be read"


def plain(message: str) -> str:
    """tyro's and Python's words in ours.

    >>> plain("Error parsing --size: invalid literal for int() with base 10: 'big'")
    "--size is 'big', not a whole number"
    >>> plain("Missing value for argument '--size'. Expected 1 values")
    '--size needs a value'
    >>> plain("Missing value for argument '--betas'. Expected 2 values")
    '--betas needs 2 values'
    >>> plain("invalid choice 'discovry' for argument '--with'. Expected one of ('knn', 'discovery')")
    "--with is 'discovry'; did you mean 'discovery'?"
    >>> plain("invalid choice 'tpu' for argument '--device'. Expected one of ('cpu', 'cuda')")
    "--device is 'tpu'; choose one of cpu, cuda"
    """
    if wrong := re.fullmatch(r"Error parsing (--\S+): (invalid literal for int|could not convert).*?: ('.*')", message):
        option, cause, value = wrong.groups()
        return f"{option} is {value}, not a {'whole number' if 'int' in cause else 'number'}"
    if missing := re.fullmatch(r"Missing value for argument '(--\S+)'\. Expected (\d+|.*) values", message):
        return f"{missing[1]} needs {missing[2]} values" if missing[2] in "23456789" else f"{missing[1]} needs a value"
    if wrong := re.fullmatch(r"Error parsing (--\S+): Could not find valid parse for arguments: \[(.*)\]", message):
        return f"{wrong[1]} is {wrong[2]}, which cannot be read"
    if wrong := re.fullmatch(r"invalid choice (.*) for argument '(.*?)'\. Expected one of (\(.*\))", message):
        value, option, known = wrong[1], wrong[2], re.findall(r"'([^']*)'", wrong[3])
        near = difflib.get_close_matches(value.strip("'").lower(), known, n=1, cutoff=0.7)
        return f"{option} is {value}; " + (
            f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(known)}"
        )
    return message
