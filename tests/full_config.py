"""The config.yaml of the repository: every key whose feature exists, with its default and what it means."""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from wintermute.config.schema import Config, key_name

HEAD = """\
# Wintermute's configuration: every key, with its default. Change the lines marked EDIT.
# Text that starts with @ ! & or * needs quotes. Relative paths start at the folder of this file.
# `null` means empty. `wintermute check` finds mistakes.

"""
SECRETS = {"password": "{env: WINTERMUTE_PASSWORD}"}
PLAIN = re.compile(r"[A-Za-z][\w./-]*")


def full_config() -> str:
    """The whole file, with an example where a key has no default."""
    return HEAD + "\n".join(section(Config, "")) + "\n"


def section(shape: Any, indent: str) -> Iterator[str]:
    """The lines of a section and of those within it."""
    for field in dataclasses.fields(shape):
        if not field.metadata.get("later"):
            edit = "EDIT: " if is_edited(field) else ""
            yield f"{indent}# {edit}{field.metadata['doc']}"
            yield from lines(field, indent)


def is_edited(field: "dataclasses.Field[Any]") -> bool:
    """Decide if a person has to write this one."""
    return "example" in field.metadata and default(field) is dataclasses.MISSING


def lines(field: "dataclasses.Field[Any]", indent: str) -> Iterator[str]:
    """A key with its value, or the section below it."""
    deeper, name = f"{indent}  ", key_name(field)
    if dataclasses.is_dataclass(field.type):
        yield f"{indent}{name}:"
        yield from section(field.type, deeper)
    elif get_origin(field.type) is Mapping and is_edited(field):
        yield f"{indent}{name}:"
        yield f"{deeper}{field.metadata['example']}:"
        yield from section(get_args(field.type)[1], f"{deeper}  ")
    else:
        value = field.metadata["example"] if is_edited(field) else default(field)
        yield f"{indent}{name}: {SECRETS.get(name) or written(value)}"


def default(field: "dataclasses.Field[Any]") -> object:
    """The value of a key that nobody writes."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def written(value: object) -> str:
    """A value in YAML: of tuples, numbers, truths and None, JSON is YAML."""
    text = str(value)
    is_plain = isinstance(value, str | Path) and PLAIN.fullmatch(text)
    return text if is_plain else json.dumps(text if isinstance(value, Path) else value)
