"""A config with some fields replaced, by dotted name; each dataclass is built once, with all its changes."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

Config = TypeVar("Config")


def changed(config: Config, overrides: Mapping[str, Any]) -> Config:
    """The same with `overrides`; ValueError naming the nearest field where one is unknown.

    All changes of a dataclass come together, for its checks look at several fields at once.

    >>> from wellcond.config import OptimConfig
    >>> changed(OptimConfig(), {"lr": 0.1, "clip": 3.0}).clip
    3.0
    """
    for name in overrides:
        _check_known(config, name)
    return _changed(config, overrides)


def _changed(config: Any, overrides: Mapping[str, Any]) -> Any:
    own = {name: value for name, value in overrides.items() if "." not in name}
    heads = dict.fromkeys(name.partition(".")[0] for name in overrides if "." in name)
    for head in heads:
        inner = {name.removeprefix(f"{head}."): v for name, v in overrides.items() if name.startswith(f"{head}.")}
        own[head] = _changed(own.get(head, getattr(config, head)), inner)
    try:
        return dataclasses.replace(config, **own)
    except TypeError as error:  # a check that met something else than a number
        kinds = {field.name: field.type for field in dataclasses.fields(config)}
        said = ", ".join(f"{name} {value!r} (expected {_kind(kinds[name])})" for name, value in own.items())
        raise ValueError(f"{type(config).__name__} does not take {said}: {error}") from None


def _kind(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _check_known(config: Any, name: str) -> None:
    known = field_names(config)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1) or [k for k in known if k.endswith(f".{name}")]
        hint = f"did you mean {near[0]!r}?" if near else f"{type(config).__name__} has {', '.join(known)}"
        raise ValueError(f"there is no field {name!r}; {hint}")


def field_names(config: Any, prefix: str = "") -> list[str]:
    """Dotted names of all fields, those that are dataclasses and those inside them."""
    found = []
    for field in dataclasses.fields(config):
        found.append(prefix + field.name)
        if dataclasses.is_dataclass(value := getattr(config, field.name)):
            found += field_names(value, f"{prefix}{field.name}.")
    return found
