"""tyro's text in our words: its help laid out for a screen and read for options, its framed errors as one sentence.

Floor 0: text in, text out; it imports nothing of ours, so every room may use it.
"""

import difflib
import re
import textwrap

_OPTION = re.compile(r"^ {0,4}(?:-h, )?(--[a-z].*)$", re.MULTILINE)
_NAMES = re.compile(r"(?:^|, )(--[a-z][a-z0-9.-]*)")
_WIDEST = 24  # column of options; what is said of a longer one begins behind it
_MANY = re.compile(r"\[(.+?) \[(?:\1 )?\.\.\.\]\]")
_SEVERAL = re.compile(r"\[(?!OPTIONS])([A-Z]+)]")  # tyro brackets an argument of several words
_NO_DEFAULT = re.compile(r" ?\((default: (none|False|)|required)\)")
_METAVAR = re.compile(r"--[a-z][a-z0-9.-]* ([^\s,-].*?)(?: {2,}|$)")


def without_colour(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def laid_out(ruled: str, columns: int, *, bold: bool = False) -> str:
    """tyro's help, as it writes it to a file, an option a line where it fits; titles may be bold.

    >>> print(laid_out("usage: x\\n\\n options\\n ---\\n  --a [STR [STR ...]]\\n     Words. (default: me)\\n", 28))
    usage: x
    <BLANKLINE>
    options:
      --a STR ...  Words.
                   (default: me)
    """
    before, *sections = re.split(r"^ (?=\w)", _SEVERAL.sub(r"\1 ...", ruled), flags=re.MULTILINE)
    shown = [(_usage if line.startswith("usage:") else _filled)(line, columns) for line in before.splitlines()]
    for section in sections:
        title, _, *rows = section.splitlines()
        words = title.strip().removeprefix("positional ") + ":"
        shown.append(f"\x1b[1m{words}\x1b[0m" if bold else words)
        entries = _entries(rows)
        width = max((len(name) for name, _ in entries if len(name) <= _WIDEST), default=_WIDEST)
        for name, text in entries:
            shown.append(_filled(f"  {name:{width}}  {text}".rstrip(), columns, " " * (width + 4) if text else "  "))
    return "\n".join(shown)


def _entries(rows: list[str]) -> list[tuple[str, str]]:
    """What is given and what is said of it. Of a default only what says more than that there is none."""
    found: list[list[str]] = []
    for row in filter(str.strip, rows):
        name, _, text = row.strip().partition("  ")
        if name.startswith("---"):  # under what a group of options is for
            found = [[" ".join(" ".join(words).strip() for words in found), ""]]
        elif row.startswith("   "):
            found[-1][1] += f" {row.strip()}"
        else:
            found.append([name, text.strip()])
    return [
        (_MANY.sub(r"\1 ...", name), (text if "none" in name else _NO_DEFAULT.sub("", text)).strip())
        for name, text in found
    ]


def _usage(line: str, columns: int) -> str:
    """An option and what it takes stay on one line."""
    held = re.sub(r"\[.*?]", lambda option: option[0].replace(" ", "\xa0"), line)
    return _filled(held, columns, "  ").replace("\xa0", " ")


def _filled(line: str, columns: int, indent: str = "") -> str:
    if len(line) <= columns:
        return line
    return textwrap.fill(line, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def options(text: str) -> dict[str, str]:
    """The long options in tyro's help and what each takes; "" where it is a flag.

    >>> options("  -h, --help   this\\n  --method {svd,dct}\\n  --on, --no-on\\n  --out PATH  where --to")
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
    >>> plain("Error parsing --size: 99999999999999999999 is too large a number")
    '--size is 99999999999999999999, too large a number'
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
    if wrong := re.fullmatch(r"Error parsing (--\S+): (\S+) is (.*)", message):  # what a rule of parsing.py says
        return f"{wrong[1]} is {wrong[2]}, {wrong[3]}"
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
