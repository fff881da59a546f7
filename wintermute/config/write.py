"""The first config.yaml: every key whose feature exists, its default and one line about it."""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from wintermute.config.schema import Config

HEAD = """\
# Wintermute's configuration: every key, with its default. Change the lines marked EDIT.
# Text that starts with @ ! & or * needs quotes. Relative paths start at the folder of this file.
# `wintermute check` tells what is wrong.

"""
SECRETS = {"password": "{env: WINTERMUTE_PASSWORD}"}
UNTOUCHED = "matrix.homeserver is still the example: change the lines marked EDIT"
PLAIN = re.compile(r"[A-Za-z][\w./-]*")


def starter_config() -> str:
    """The text of a new config.yaml, with placeholders for what only its owner knows."""
    return HEAD + "\n".join(_section(Config, "")) + "\n"


def is_untouched(config: Config) -> bool:
    """Whether nobody has said yet where the bot lives: the address is still the example's."""
    (field,) = (f for f in dataclasses.fields(config.matrix) if f.name == "homeserver")
    return bool(config.matrix.homeserver == field.metadata["example"])


def _section(shape: Any, indent: str) -> Iterator[str]:
    for field in dataclasses.fields(shape):
        if not field.metadata.get("later"):
            edit = "EDIT: " if _is_edited(field) else ""
            yield f"{indent}# {edit}{field.metadata['doc']}"
            yield from _key(field, indent)


def _is_edited(field: "dataclasses.Field[Any]") -> bool:
    return "example" in field.metadata and _default(field) is dataclasses.MISSING


def _key(field: "dataclasses.Field[Any]", indent: str) -> Iterator[str]:
    deeper = f"{indent}  "
    if dataclasses.is_dataclass(field.type):
        yield f"{indent}{field.name}:"
        yield from _section(field.type, deeper)
    elif get_origin(field.type) is Mapping and _is_edited(field):
        yield f"{indent}{field.name}:"
        yield f"{deeper}{field.metadata['example']}:"
        yield from _section(get_args(field.type)[1], f"{deeper}  ")
    else:
        default = field.metadata["example"] if _is_edited(field) else _default(field)
        yield f"{indent}{field.name}: {SECRETS.get(field.name) or _written(default)}"


def _default(field: "dataclasses.Field[Any]") -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _written(value: object) -> str:
    if isinstance(value, str | Path):
        text = str(value)
        return text if PLAIN.fullmatch(text) else json.dumps(text)
    return json.dumps(value)  # of tuples, numbers, truths and None, JSON is YAML
