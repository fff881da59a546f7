"""The schema: each table says whose it is, each index serves a statement, each name is a plain one."""

import ast
import inspect
import pkgutil
import re
from collections.abc import Iterator
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import wintermute
from tests.world.schema import lay_schema
from wintermute.db import Error, driver
from wintermute.db.database import shipped_migrations
from wintermute.db.text_search import SearchableText

STATEMENT = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b")
PLACE = re.compile(r"[:@](\w+)")
OURS = "type = '{}' AND name NOT LIKE 'sqlite_%' AND name NOT LIKE 'facts_fts_%'"
TOGETHER = {  # statements that a function puts together, by the index they are for
    "facts_unexamined": "SELECT * FROM facts WHERE scope = ? AND examined <> 1 AND examined = 0"
    " AND retired_at IS NULL AND NOT ended ORDER BY seq DESC LIMIT 9",
    "consolidations_open": "SELECT job FROM consolidations WHERE NOT settled ORDER BY seq",
}
LEFT = (
    "told telling piece kept sign signs mark marks tag copies resting awake spelled unasked until"
    " steady judged verdict worth run work do chore finding epochs_ taken free off"
)
"""Words that stand on the left of words.md, or were columns of ours for what has a plainer name."""


class Names(dict[str, Any]):
    """The names of a module; "" for one that only a running function knows."""

    def __missing__(self, name: str) -> str:
        return ""


def texts(module: ModuleType) -> Iterator[str]:
    """The texts of a module: of its constants, and those in its functions as far as they are known."""
    names = Names(vars(import_module("builtins")) | vars(module))
    yield from (value for value in vars(module).values() if isinstance(value, str))
    for kept in (value for value in vars(module).values() if isinstance(value, SearchableText)):
        yield from (kept.meant(), kept.emptying(), *kept.dependents)
    tree = ast.parse(inspect.getsource(module))
    parts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if part is not node
    }
    for node in ast.walk(tree):
        begins = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else node
        is_sql = isinstance(begins, ast.Constant) and STATEMENT.match(str(begins.value))
        if isinstance(node, ast.JoinedStr | ast.Constant) and is_sql and id(node) not in parts:
            with suppress(AttributeError, TypeError, ValueError, LookupError, SyntaxError):
                text = eval(compile(ast.Expression(node), "text", "eval"), {}, names)
                if isinstance(text, str):
                    yield text


def statements() -> Iterator[str]:
    """The statements of the program that are whole where they stand."""
    for found in pkgutil.walk_packages(wintermute.__path__, "wintermute."):
        if not found.name.endswith("__main__"):
            yield from filter(STATEMENT.match, texts(import_module(found.name)))


@pytest.fixture
def schema(tmp_path: Path) -> Iterator[Any]:
    lay_schema(tmp_path / "w.db")
    with closing(driver.connect(tmp_path / "w.db", read_only=False)) as connection:
        yield connection


def plans(connection: Any, statement: str) -> str:
    """The plan of a statement, or the reason why it has none, as what is no whole statement."""
    numbers = [int(n) for n in re.findall(r"\?(\d+)", statement)] or [statement.count("?")]
    named = dict.fromkeys(PLACE.findall(statement))
    given = [None] * max(numbers) if max(numbers) else named
    try:
        return str([row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", given)])
    except Error as problem:
        return str(problem)


def test_each_table_is_there_and_each_index_is_used_by_a_statement_of_the_program(
    schema: Any,
) -> None:
    """One that no plan names costs each write and gives nothing; a UNIQUE one refuses what is double."""
    triggers = schema.execute("SELECT sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    bodies = [re.sub(r"\b(NEW|OLD)\.", ":", sql.partition("BEGIN")[2]) for (sql,) in triggers]
    asked = [*statements(), *TOGETHER.values(), *";".join(bodies).split(";")]
    found = [plans(schema, statement) for statement in asked]
    assert sum(plan.startswith("[") for plan in found) > 600
    missing = set(re.findall(r"no such table: (\w\w+)", "\n".join(found)))
    assert missing == {"_config", "wintermute_notes"}  # of facts_fts, and of the keys' own database
    named = set(re.findall(r"INDEX (\w+)", "".join(found)))
    for index, statement in TOGETHER.items():
        assert index in plans(schema, statement)
    query = (
        f"SELECT name FROM sqlite_schema WHERE {OURS.format('index')} AND sql NOT LIKE '%UNIQUE%'"
    )
    assert {name for (name,) in schema.execute(query)} - named == set()


def test_each_table_says_what_a_row_is_and_which_part_owns_it() -> None:
    """Above it, in the file that somebody reads first."""
    (first,) = shipped_migrations()
    tables = re.findall(r"((?:^--.*\n)*)^CREATE (?:VIRTUAL )?TABLE (\w+)", first.sql, re.MULTILINE)
    folders = {item.stem for item in Path(wintermute.__path__[0]).iterdir()}
    for comment, table in tables:
        owner = re.search(r"\(owner: (\w+)", comment)
        assert owner is not None, table
        assert owner[1] in folders, table
    assert len(tables) <= 62


def test_no_table_or_column_has_a_name_that_the_words_of_the_project_replaced(schema: Any) -> None:
    """The words that people use in the field are those of the schema."""
    query = f"SELECT name FROM sqlite_schema WHERE {OURS.format('table')}"
    tables = [name for (name,) in schema.execute(query)]
    names = {row[1] for table in tables for row in schema.execute(f"PRAGMA table_info({table})")}
    words = {word for name in (*tables, *names) for word in name.split("_")}
    assert words & {*LEFT.split()} == set()
