"""Random histories of a conversation, and a message as the inbox has it."""

from hypothesis import strategies as st

from tests.world.clock import NOON
from wintermute.loom.records import Cast, Observation, Turn
from wintermute.mailbox.inbox import InboxRow
from wintermute.messages import Call, InboxKind

IDS = st.sampled_from(["", "x", "x~1", "x~2", "x~1~2", "call", "call~0", "y"])
TEXT = st.text(max_size=30)
CALLS = st.builds(Call, IDS, TEXT, st.one_of(TEXT, st.just("{}"), st.just('{"a": NaN}')))
VALUES = st.one_of(st.none(), st.booleans(), TEXT, st.lists(st.integers(), max_size=3))
OBSERVATIONS = st.builds(
    Observation,
    n=st.integers(0, 4),
    gate=TEXT,
    args=st.none(),
    result=VALUES,
    is_error=st.booleans(),
    tool_call_id=IDS,
    completed=st.booleans(),
)
TURNS = st.builds(
    Turn,
    id=st.just("turn"),
    parent_id=st.none(),
    utterance=st.one_of(st.just(""), TEXT),
    calls=st.lists(CALLS, max_size=4).map(tuple),
    finish_reason=st.just("stop"),
    tokens=st.just(1),
    ms=st.just(1),
    error=st.one_of(st.none(), st.none(), st.just("away"), st.just("")),
    observations=st.lists(OBSERVATIONS, max_size=5).map(tuple),
)
CASTS = st.builds(
    Cast,
    id=st.just("cast"),
    branch_id=st.just("branch"),
    event_id=st.sampled_from([None, "$1", "$2"]),
    entity_id=st.just("entity"),
    intent=TEXT,
    origin=st.just("owner"),
    wards=st.just({}),
    state=st.sampled_from(["running", "terminated", "truncated"]),
    reason=st.none(),
    result=st.none(),
    turns=st.lists(TURNS, max_size=4).map(tuple),
)
HISTORY = st.lists(CASTS, min_size=1, max_size=5)


def waiting_row(
    body: str = "hi",
    kind: InboxKind = "message",
    *,
    name: str = "Ann",
    direct: bool = False,
    minutes: int | None = None,
    seq: int = 1,
) -> InboxRow:
    """Make a message as the inbox has it."""
    later = None if minutes is None else minutes * 60
    sender = "@ann:test"
    who, state = (sender, name, "owner"), ("waiting", later, NOON, NOON)
    return InboxRow(seq, f"${seq}", "c", "!r", *who, kind, body, direct, *state)  # type: ignore[arg-type]  # the literals
