"""A row is read into its frozen value, and written from values, by the names of the fields."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, is_dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench_values import NOON, microseconds
from tests.tiers import examples
from wintermute.changes.change_sets import Change, ChangeSet, ItemVersion
from wintermute.changes.decisions import Decision
from wintermute.changes.nights import Night, PastResult, PhaseTally
from wintermute.db import driver
from wintermute.db.values import columns, insert, insert_many, reader, stored
from wintermute.health.health import PartHealth
from wintermute.jobs import Job
from wintermute.learning.harvest import Backlog, Cursor, MessageVersion
from wintermute.llm.calls import RoleUsage
from wintermute.loom.conversations import Conversation
from wintermute.loom.reader import ForkPoint
from wintermute.loom.records import Cast, Fold, Observation, Turn, Wards
from wintermute.loom.sub_sessions import SubSession, WorkSettings
from wintermute.mailbox.history import OwnedConversation, ShownMessage
from wintermute.mailbox.inbox import InboxRow, LockedEvent, OpenRow
from wintermute.mailbox.outbox import LateNote, OutboxPart, Outgoing, SentMessage
from wintermute.mailbox.rooms import Invitation, Link
from wintermute.mailbox.streaming import EditableRow
from wintermute.matrix.people import Device, Person
from wintermute.matrix.rollback import Rollback
from wintermute.memory.archive import StaleFact
from wintermute.memory.fact import Fact, FileLine, Queue
from wintermute.memory.vectors import Space
from wintermute.messages import Call, Json
from wintermute.pages.sources import OpenConsolidation
from wintermute.tasks.occurrences import Due, Occurrence
from wintermute.tasks.tasks import Task
from wintermute.web.sessions import WebSession

READ: dict[type[Any], tuple[str, ...]] = {
    Backlog: (),
    Cast: ("turns",),
    Change: (),
    ChangeSet: ("changes", "undone"),
    Conversation: (),
    Cursor: (),
    Device: (),
    Due: ("task",),
    Fact: (),
    Fold: (),
    FileLine: (),
    OwnedConversation: (),
    Invitation: (),
    ItemVersion: (),
    LateNote: (),
    Job: (),
    Link: (),
    Night: (),
    Decision: (),
    LockedEvent: (),
    Observation: (),
    OpenConsolidation: (),
    Occurrence: (),
    OpenRow: (),
    EditableRow: ("attempted",),
    Outgoing: ("late", "live"),
    OutboxPart: ("of",),
    PartHealth: (),
    PastResult: (),
    Person: (),
    PhaseTally: (),
    Queue: (),
    Rollback: (),
    Space: (),
    StaleFact: (),
    RoleUsage: (),
    ForkPoint: (),
    SentMessage: (),
    ShownMessage: (),
    SubSession: ("settings",),
    Task: ("schedule", "plan"),
    Turn: ("observations",),
    InboxRow: (),
    MessageVersion: (),
    WebSession: (),
    WorkSettings: (),
}
"""Every value that is read from a row, and what of it is no column."""
TEXT = st.text(max_size=8)
JSON = st.dictionaries(TEXT, TEXT | st.integers() | st.none() | st.lists(TEXT), max_size=3)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    date: st.dates(),
    datetime: st.datetimes(timezones=st.just(UTC)),
    NoneType: st.none(),
    dict: JSON,
    Any: JSON,
}


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Anything that a field of this type may hold."""
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        return st.one_of(*map(values_of, parts))
    if kind is Literal:
        return st.sampled_from(parts)
    if kind is tuple:
        return st.lists(values_of(parts[0]), max_size=3).map(tuple)
    if isinstance(hint, type) and is_dataclass(hint):
        hints = get_type_hints(hint)
        return st.builds(hint, **{name: values_of(each) for name, each in hints.items()})
    return PLAIN[kind]


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A database of its own."""
    opened = driver.connect(tmp_path_factory.mktemp("values") / "some.db", read_only=False)
    yield opened
    opened.close()


def kept(connection: Any, values: Json) -> Any:
    """The row that these values become."""
    connection.execute("DROP TABLE IF EXISTS some")
    connection.execute(f"CREATE TABLE some ({', '.join(values)})")
    connection.execute(*insert("some", values))
    return connection.execute("SELECT * FROM some").fetchone()


@pytest.mark.parametrize("value_class", READ, ids=lambda each: each.__name__)
def test_what_is_stored_is_read_back_as_it_was(connection: Any, value_class: type[Any]) -> None:
    """Moments, truths, JSON, values in it, and None, in each value that rows are read into."""
    beside = READ[value_class]
    hints = {n: hint for n, hint in get_type_hints(value_class).items() if n not in beside}
    read: Callable[..., Any] = reader(value_class, *beside)

    @settings(max_examples=examples(15))
    @given(st.fixed_dictionaries({name: values_of(hint) for name, hint in hints.items()}))
    def holds(values: Json) -> None:
        value = value_class(**values, **dict.fromkeys(beside))
        row = kept(connection, columns(value, *beside))
        assert read(row, **dict.fromkeys(beside)) == value

    holds()


def test_each_value_that_is_read_from_rows_is_tried() -> None:
    """Whoever adds a reader adds its value above, with what it is given beside the row."""
    sources = [path.read_text() for path in sorted(Path("wintermute").rglob("*.py"))]
    found = [call for text in sources for call in re.findall(r"= reader\((.*)\)", text)]
    named = {(name, *beside) for name, *beside in (re.findall(r"\w+", each) for each in found)}
    assert named == {(value.__name__, *beside) for value, beside in READ.items()}


@dataclass(frozen=True, slots=True)
class Sample:
    """One field of each kind."""

    id: str
    size: int
    share: float | None
    done: bool
    at: datetime
    day: date
    until: datetime | None
    kind: Literal["a", "b"]
    names: tuple[str, ...]
    state: Json | None
    calls: tuple[Call, ...]
    wards: Wards
    anything: Any


WARDS = Wards(3, 2.5, 100, require_done=True)
SAMPLE = Sample(
    id="one",
    size=3,
    share=0.5,
    done=True,
    at=NOON,
    day=date(2026, 6, 12),
    until=None,
    kind="a",
    names=("x", "y"),
    state=None,
    calls=(Call("c", "search", "{}", "tag"),),
    wards=WARDS,
    anything=[1, "two", None],
)
AS_KEPT: Json = {
    "id": "one",
    "size": 3,
    "share": 0.5,
    "done": 1,
    "at": "2026-06-12T12:00:00.000000+00:00",
    "day": "2026-06-12",
    "until": None,
    "kind": "a",
    "names": '["x", "y"]',
    "state": None,
    "calls": '[{"id": "c", "name": "search", "arguments": "{}", "via": "tag"}]',
    "wards": '{"max_turns": 3, "max_seconds": 2.5, "max_tokens": 100, "require_done": true}',
    "anything": '[1, "two", null]',
}
READ_SAMPLE = reader(Sample)


def test_the_type_of_a_field_says_how_it_is_kept(connection: Any) -> None:
    """What stands in the columns is what stood there before there was one place for it."""
    assert stored(columns(SAMPLE)) == AS_KEPT
    row = kept(connection, columns(SAMPLE))
    assert dict(zip(row.keys(), row, strict=True)) == AS_KEPT
    assert READ_SAMPLE(row) == SAMPLE


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("share", "12.5", 12.5),  # in a column of text
        ("share", None, None),
        ("done", 0, False),
        ("until", "2026-06-12T12:00:00.000000+00:00", NOON),
        ("names", "[]", ()),
        ("state", '{"x": 1}', {"x": 1}),
        ("anything", "", ""),  # erased
        ("anything", None, None),
        ("anything", '"text"', "text"),
        # An older record without what was added since.
        ("calls", '[{"id": "c", "name": "n", "arguments": ""}]', (Call("c", "n", ""),)),
    ],
)
def test_a_column_becomes_what_the_field_holds(name: str, text: object, value: object) -> None:
    """Each kind of column, None and what was erased among them."""
    assert getattr(READ_SAMPLE(AS_KEPT | {name: text}), name) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("names", "[1, "),
        ("names", ""),
        ("names", None),
        ("state", "no JSON"),
        ("anything", "no JSON"),
        ("wards", '{"max_turns": 3}'),
        ("wards", '{"unknown": 3}'),
        ("at", "noon"),
        ("at", None),
        ("day", "2026-06-12T12:00"),
        ("share", "half"),
    ],
)
def test_a_column_that_holds_something_else_is_loud(name: str, text: object) -> None:
    """Nothing is guessed and nothing left out: who wrote that row has a bug."""
    with pytest.raises((ValueError, TypeError)):
        READ_SAMPLE(AS_KEPT | {name: text})


def test_a_row_without_a_column_for_a_field_is_loud(connection: Any) -> None:
    """Also where the field has a default."""
    row = kept(connection, {"room_id": "!r", "encrypted": 1, "joined": 1})
    with pytest.raises(IndexError):
        reader(Link)(row)


def test_a_field_that_was_to_be_given_is_missed() -> None:
    """As is one that there is not."""
    read = reader(LateNote, "mark")
    row = stored({"after": NOON})
    assert read(row, mark="!") == LateNote(NOON, "!")
    for others in ({}, {"mark": "!", "sign": "?"}):
        with pytest.raises(TypeError):
            read(row, **others)


def test_columns_that_the_value_has_no_field_for_are_left_alone() -> None:
    """So `SELECT *` is enough, whatever is added to a table."""
    assert READ_SAMPLE(AS_KEPT | {"more": 1}) == SAMPLE


def test_many_rows_go_by_one_statement(connection: Any) -> None:
    """None of them is none."""
    statement, rows = insert_many("some", [{"n": n, "at": NOON} for n in range(3)])
    connection.execute("DROP TABLE IF EXISTS some")
    connection.execute("CREATE TABLE some (n, at)")
    connection.executemany(statement, rows)
    assert [tuple(row) for row in connection.execute("SELECT * FROM some")] == [
        (n, AS_KEPT["at"]) for n in range(3)
    ]
    assert insert_many("some", []) == ("", [])


def test_a_statement_may_say_more_after_its_values(connection: Any) -> None:
    """What to do when the row is there, and what to give back."""
    connection.execute("DROP TABLE IF EXISTS some")
    connection.execute("CREATE TABLE some (n PRIMARY KEY, at)")
    more = "ON CONFLICT (n) DO UPDATE SET at = excluded.at RETURNING at"
    for each in ("morning", "evening"):
        statement = insert("some", {"n": 1, "at": each}, more)
        assert [row["at"] for row in connection.execute(*statement).fetchall()] == [each]


@pytest.mark.slow
@pytest.mark.alone
def test_reading_by_names_costs_little_more_than_by_hand() -> None:
    """An inbox row within 1.5 times."""
    hand, names = microseconds()
    assert names <= 1.5 * hand
