"""A config ⇄ JSON text, and which fields two configs differ in.

>>> from wellcond.config import GrayConfig
>>> config = GrayConfig(source=Path("cat.jpg"), method="svd", epsilon=0.6)
>>> from_json(to_json(config), GrayConfig) == config
True
"""

import dataclasses
import difflib
import json
import shlex
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

Config = TypeVar("Config")


def to_json(config: Any) -> str:
    """One config as JSON text: sorted as declared, paths as text."""
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise ValueError(f"to_json takes a config, not {config!r}")
    return json.dumps(dataclasses.asdict(config), indent=2, default=_encode, allow_nan=False) + "\n"


def to_command(verb: str, config: Any, names: Mapping[str, str] = types.MappingProxyType({})) -> str:
    """The command line that gives this config again; defaults are left out. `names`: field → option, where they differ.

    >>> from wellcond.config import GrayConfig
    >>> to_command("gray", GrayConfig(source=Path("a b.jpg"), epsilon=0.6))
    "wellcond gray 'a b.jpg' --epsilon 0.6"
    """
    words = ["wellcond", verb]
    for entry in dataclasses.fields(config):
        value, option = getattr(config, entry.name), names.get(entry.name, entry.name).replace("_", "-")
        given = [str(item) for item in value] if isinstance(value, tuple) else [str(value)]
        if entry.default is dataclasses.MISSING:
            words += given
        elif value == entry.default:
            continue
        elif entry.type is bool:  # a switch; none is on by default
            words.append(f"--{option}")
        else:
            words += [f"--{option}", *given]
    return shlex.join(words)


def from_json(text: str, kind: type[Config]) -> Config:
    """The config of class `kind` that `to_json` wrote; missing fields take their defaults."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    return decode(value, kind, kind.__name__)


def changed_fields(old: Any, new: Any) -> dict[str, tuple[Any, Any]]:
    """Dotted name → (old value, new value) of every field that differs; in the order of declaration.

    >>> from wellcond.config import DemoConfig
    >>> changed_fields(DemoConfig(), DemoConfig(count=3))
    {'count': (4, 3)}

    5 and 5.0 are the same: which of them a user wrote does not survive JSON. 1 and True are not.
    """
    if type(old) is not type(new):
        return {"": (old, new)}
    changed: dict[str, tuple[Any, Any]] = {}
    for field in dataclasses.fields(old):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if dataclasses.is_dataclass(before) and type(before) is type(after):
            changed |= {f"{field.name}.{name}": pair for name, pair in changed_fields(before, after).items()}
        elif before != after or isinstance(before, bool) is not isinstance(after, bool):
            changed[field.name] = (before, after)
    return changed


def _encode(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise ValueError(f"a config cannot hold {value!r}")


def decode(value: Any, kind: Any, where: str) -> Any:
    """`value` from JSON as the type `kind`, a dataclass or what one is made of; `where` names the field in errors."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        for option in arguments:
            try:
                return decode(value, option, where)
            except ValueError:
                continue
    elif origin is Literal:
        if any(value == option and type(value) is type(option) for option in arguments):
            return value
        raise ValueError(f"{where} is {value!r}; choose one of {', '.join(map(repr, arguments))}")
    elif origin in (tuple, list) and isinstance(value, list):
        repeated = origin is list or Ellipsis in arguments
        if repeated or len(value) == len(arguments):
            kinds = [arguments[0]] * len(value) if repeated else arguments
            return origin(decode(item, kinds[i], f"{where}[{i}]") for i, item in enumerate(value))
    elif origin is dict and isinstance(value, dict):
        return {name: decode(item, arguments[1], f"{where}[{name!r}]") for name, item in value.items()}
    elif dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return _decode_dataclass(value, typing.cast(type, kind), where)
    elif kind is Path and isinstance(value, str):
        return Path(value)
    elif kind is float and type(value) in (int, float):
        return float(value)
    elif isinstance(kind, type) and type(value) is kind:  # type(), not isinstance: True is no int here
        return value
    expected = kind if origin else getattr(kind, "__name__", kind)
    raise ValueError(f"{where} is {_brief(value)}; expected {expected}")


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:76]} …"


def _decode_dataclass(value: dict[str, Any], kind: type, where: str) -> Any:
    hints = typing.get_type_hints(kind)
    known = [field.name for field in dataclasses.fields(kind)]
    for name in value:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(known)}"
            raise ValueError(f"{where} has no field {name!r}{hint}")
    required = {
        f.name
        for f in dataclasses.fields(kind)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    if missing := sorted(required - set(value)):
        raise ValueError(f"{where} needs {', '.join(missing)}")
    return kind(**{name: decode(item, hints[name], f"{where}.{name}") for name, item in value.items()})
