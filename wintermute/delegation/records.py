"""What is known of a sub-session, as values."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from wintermute.conversation.toolbox import Caller, Place
from wintermute.conversation.wards import Wards
from wintermute.messages import Origin
from wintermute.prompt.modes import Mode

State = Literal["waiting", "running", "collecting", "done", "failed", "timed_out", "ended"]
"""`collecting`: its own work is over, that of those it spawned is not. `ended`: from outside."""

ABANDONED = "parent_terminated"
STOPPED = "stopped"
RESTARTED = "restarted"
OUTCOMES: dict[str, State] = {
    "done": "done",
    "max_seconds": "timed_out",
    ABANDONED: "ended",
    STOPPED: "ended",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a parent asks for; `timeout_s`, `max_depth` None: as the configuration has it."""

    objective: str
    context: str = ""
    mode: Mode = "minimal"
    tools: tuple[str, ...] | None = None
    model: str | None = None
    name: str | None = None
    depends_on: tuple[str, ...] = ()
    not_before: datetime | None = None
    timeout_s: float | None = None
    max_depth: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What a sub-session may use."""

    tools: tuple[str, ...]
    role: str
    backend: str | None
    depth: int
    wards: Wards


@dataclass(frozen=True, slots=True, kw_only=True)
class SubSession:
    """One sub-session. `room` is the conversation that its report goes to.

    `parent` is the sub-session that spawned or called it, `room_turn` the turn of the room below
    which it hangs, `root_event` what the room's cast answers.
    """

    id: str
    blocking: bool
    branch_id: str
    cast_id: str | None
    parent: str | None
    room: str
    room_turn: str
    root_event: str | None
    workflow: str
    name: str | None
    objective: str
    context: str
    mode: Mode
    means: Means
    scope: str
    origin: Origin
    not_before: datetime | None
    state: State
    reason: str | None
    result: str

    @property
    def label(self) -> str:
        """What its parent calls it."""
        return self.name or self.id

    @property
    def is_open(self) -> bool:
        """Whether something is still to be expected of it."""
        return self.state in ("waiting", "running", "collecting")


def state_of(reason: str) -> State:
    """The state that a sub-session has after a cast that ended so."""
    return OUTCOMES.get(reason, "failed")


def placed(caller: Caller) -> Place:
    """Where a call stands."""
    if caller.place is None:
        raise ValueError("only a call of a turn can hand out work")
    return caller.place
