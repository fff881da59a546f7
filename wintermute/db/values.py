"""Rows and frozen values: reading and writing by the names of the fields.

The type of a field decides its column: a time as `stamp` writes it, texts and numbers as they are, a bool as 0 or 1,
everything else as JSON. A column with another name is renamed in SQL.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from datetime import date, datetime
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from wintermute.clock import moment, stamp

V = TypeVar("V")
Convert = Callable[[Any], Any]


def reader(value: type[V], *given: str) -> Callable[..., V]:
    """Return a function that reads a row as such a value: `read(row)`, with the `given` fields by name.

    It raises an error for a missing column, and for invalid JSON or times.
    """
    hints = get_type_hints(value)
    names = [name for name in hints if name not in given]
    converts = [(name, convert) for name in names if (convert := _of_column(hints[name]))]

    def read(row: Any, **others: Any) -> V:
        found = {name: row[name] for name in names}
        for name, convert in converts:
            found[name] = convert(found[name])
        return value(**found, **others)

    return read


def columns(value: Any, *without: str) -> dict[str, Any]:
    """Return the fields of a value by name."""
    names = (field.name for field in fields(value))
    return {name: getattr(value, name) for name in names if name not in without}


def stored(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the SQL parameters for these columns."""
    return {name: _stored(value) for name, value in values.items()}


def insert(table: str, values: Mapping[str, Any], more: str = "") -> tuple[str, dict[str, Any]]:
    """Return an INSERT statement for a row, and its parameters; `more` is appended."""
    names, places = ", ".join(values), ", :".join(values)
    return f"INSERT INTO {table} ({names}) VALUES (:{places}) {more}", stored(values)


def insert_many(table: str, rows: Sequence[Mapping[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """Return an INSERT statement for rows of the same columns, and their parameters."""
    return insert(table, rows[0])[0] if rows else "", [stored(row) for row in rows]


def _stored(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, datetime):
        return stamp(value)
    return value.isoformat() if isinstance(value, date) else json.dumps(value, default=asdict)


def _anything(text: str | None) -> Any:
    return json.loads(text) if text else text  # "" after it was erased


KEPT: Mapping[Any, Convert | None] = {
    str: None,
    int: None,
    Literal: None,
    bool: bool,
    float: float,
    datetime: moment,
    date: date.fromisoformat,
    Any: _anything,
}


def _of_column(hint: Any) -> Convert | None:
    """Return the conversion from a column to this type; None: none is needed."""
    if get_origin(hint) in (Union, UnionType):
        (only,) = (each for each in get_args(hint) if each is not NoneType)
        return _unless_none(_of_column(only))
    kind = get_origin(hint) or hint
    if kind in KEPT:
        return KEPT[kind]
    make = _of_json(hint)
    return (lambda text: make(json.loads(text))) if make else json.loads


def _of_json(hint: Any) -> Convert | None:
    """Return the conversion from JSON to this type; None: none is needed."""
    if get_origin(hint) is tuple:
        each = _of_json(get_args(hint)[0])
        return (lambda found: tuple(map(each, found))) if each else tuple
    if not (isinstance(hint, type) and is_dataclass(hint)):
        return None
    hints = get_type_hints(hint)
    parts = [(name, make) for name in hints if (make := _of_json(hints[name]))]

    def value(found: Any) -> Any:
        made = {name: make(found[name]) for name, make in parts if name in found}
        return hint(**(found | made))

    return value


def _unless_none(convert: Convert | None) -> Convert | None:
    return convert and (lambda kept: None if kept is None else convert(kept))
