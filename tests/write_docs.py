"""Writes what the program itself knows: parts of docs/, config.yaml. `python -m tests.write_docs`."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import click

from tests.full_config import full_config
from wintermute.cli.main import cli
from wintermute.commands.chat import HELP
from wintermute.config.document import expected
from wintermute.config.schema import Config, Secret, Wiki, key_name
from wintermute.tools.definition import definition

DOCS = Path(__file__).parent.parent / "docs"
WIDTH = 100
CONFIGURATION = """\
# Configuration

This page lists every key of `config.yaml`. Only the keys without a default are needed. `wintermute init` writes those
that people change most; the `config.yaml` of the repository has them all. `wintermute check` finds every mistake and
names its line and column.

- Text that starts with `@`, `!`, `&` or `*` needs quotes. Relative paths start at the folder of the file. `null` means empty.
- Secrets are never in the file. `{env: NAME}` takes one from the environment, `{file: PATH}` from a
  file. Under systemd PATH may be the name of a credential.
- Wintermute ignores proxies of the environment (`HTTPS_PROXY`, `ALL_PROXY`). Set `matrix.proxy` and
  `llm.backends.NAME.proxy`, with name and password in `proxy_login`.
- `NAME` in a key is a name of your choice: `llm.backends.local.model`.

*`python -m tests.write_docs` writes this page from the schema.*
"""
CATHEDRAL = """\
### Beside config.yaml

`wintermute wiki` commands also read `cathedral.json` in your folder, or the file in
`CATHEDRAL_CONFIG`. It is JSON with the keys of `wiki`, such as `{"store_path": "pages",
"model": "local"}`. The variables `CATHEDRAL_STORE`, `CATHEDRAL_MODEL` and `CATHEDRAL_RUNTIME_PROMPT` set
`store_path`, `model` and `runtime_prompt`. The first of these counts: `--store`, a variable,
`cathedral.json`, `config.yaml`. Each name of `agent_cmds` counts by itself. The daemon reads only
`config.yaml`.

A relative path of a prompt file starts at the file that names it, or for a variable at your folder.
If nothing is there, it starts at the data folder: `prompts/runtime/mine.md`.
"""
LATER = """\
## Not built yet

Wintermute accepts and checks these keys, but they have no effect yet:
"""
COMMANDS = """\
# Commands

This page lists the commands of the shell, those of a chat, and the tools of the assistant.
`--config PATH` may come before or after a command; without it, `$WINTERMUTE_CONFIG` or
`config.yaml` in this folder counts.  Exit codes: 0 means success, 1 that the operation failed or a
check found problems. 2 means that the command line, the configuration or the account needs a
change. An error is one line on stderr that says what to do.

*`python -m tests.write_docs` writes this page from `--help`.*
"""
DEFINITIONS = DOCS.parent / "wintermute/tools/definitions"


def configuration() -> str:
    """docs/configuration.md."""
    parts = [CONFIGURATION]
    alone = [field for field in _present(Config) if not dataclasses.is_dataclass(field.type)]
    parts += ["## At the top\n", _table([row for field in alone for row in _rows(field, "")])]
    for field in _present(Config):
        if dataclasses.is_dataclass(field.type):
            rows = [
                row for inner in _present(field.type) for row in _rows(inner, f"{key_name(field)}.")
            ]
            parts += [f"## {key_name(field)}\n\n{field.metadata['doc']}\n", _table(rows)]
            parts += [CATHEDRAL] if field.type is Wiki else []
    names = ", ".join(f"`{name}`" for name in later(Config, ""))
    return "\n".join([*parts, LATER, names, ""])


def keys() -> Iterator[str]:
    """Every key whose feature exists, as the page writes it."""
    for field in _present(Config):
        yield from (name for name, *_ in _rows(field, ""))


def later(shape: Any, before: str) -> Iterator[str]:
    """Keys whose feature does not exist, the outermost of each branch."""
    for field in dataclasses.fields(shape):
        name = before + key_name(field)
        inner, deeper = _inside(field.type)
        if field.metadata.get("later"):
            yield name
        elif inner:
            yield from later(inner, f"{name}.{deeper}")


def _present(shape: Any) -> list["dataclasses.Field[Any]"]:
    return [field for field in dataclasses.fields(shape) if not field.metadata.get("later")]


def _inside(kind: Any) -> tuple[Any, str]:
    """The section behind a key, and what stands between the two; None for a plain value."""
    if dataclasses.is_dataclass(kind):
        return kind, ""
    if get_origin(kind) is Mapping and dataclasses.is_dataclass(get_args(kind)[1]):
        return get_args(kind)[1], "NAME."
    found = [part for part in get_args(kind) if dataclasses.is_dataclass(part)]
    return (found[0], "") if found else (None, "")


def _rows(field: "dataclasses.Field[Any]", before: str) -> Iterator[tuple[str, str, str, str]]:
    name = before + key_name(field)
    inner, between = _inside(field.type)
    if inner is None:
        yield name, _kind(field), _default(field), field.metadata["doc"]
    else:
        for deeper in _present(inner):
            yield from _rows(deeper, f"{name}.{between}")


def _kind(field: "dataclasses.Field[Any]") -> str:
    plain = [part for part in get_args(field.type) if part is not type(None)]
    optional = type(None) in get_args(field.type)
    kind = plain[0] if optional else field.type
    if kind is Secret:
        return "`{env: NAME}` or `{file: PATH}`"
    if get_origin(kind) is tuple:
        return f"a list: {expected(get_args(kind)[0], field.metadata)}"
    return expected(kind, field.metadata) + (", or empty" if optional else "")


def _default(field: "dataclasses.Field[Any]") -> str:
    value = field.default
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    if value is dataclasses.MISSING:
        return "**needed**"
    if isinstance(value, str | Path):
        return f"`{value}`"
    return "" if value in (None, ()) else f"`{json.dumps(value)}`"


def _table(rows: list[tuple[str, str, str, str]]) -> str:
    lines = [f"| `{key}` | {kind} | {default} | {doc} |" for key, kind, default, doc in rows]
    return "\n".join(["| key | value | default | |", "|---|---|---|---|", *lines, ""])


def commands(
    command: click.Command = cli, parent: click.Context | None = None
) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Every command, by its words, with a context to ask for its help."""
    context = click.Context(
        command,
        parent,
        info_name=command.name if parent else "wintermute",
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        **command.context_settings,
    )
    yield context.command_path, command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(inner, context)


def _typed(line: str, *examples: str) -> str:
    return f"{line}. For example: `{'`, `'.join(examples)}`." if examples else f"{line}."


def command_line() -> str:
    """docs/commands.md."""
    parts = [COMMANDS]
    for words, command, context in commands():
        parts.append(f"## {words}\n\n```text\n{command.get_help(context)}\n```\n")
    said = "\n".join(f"- `{name}`: {_typed(*text.split(' | '))}" for name, text in HELP.items())
    files = sorted(DEFINITIONS.glob("*.json"))
    tools = "\n".join(f"- `{file.stem}`: {definition(file.stem)['people']}" for file in files)
    parts.append(f"## In a chat\n\n{said}\n")
    parts.append(f"## Tools of the assistant\n\n{tools}\n")
    return "\n".join(parts)


PAGES = {
    "docs/configuration.md": configuration,
    "docs/commands.md": command_line,
    "config.yaml": full_config,
}


if __name__ == "__main__":
    for page, text in PAGES.items():
        (DOCS.parent / page).write_text(text(), "utf-8")
