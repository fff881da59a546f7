"""All stores over one database, for the daemon, the commands and the command line."""

from pathlib import Path

from wintermute.changes.change_sets import ChangeSets
from wintermute.changes.undo import Undo
from wintermute.clock import Clock
from wintermute.config.secrets import UNHIDDEN, Redaction
from wintermute.db import Database
from wintermute.health.health import ClockMarks, EditedFiles, Health
from wintermute.ids import NewId
from wintermute.llm.calls import ModelCalls
from wintermute.loom.casts import Casts
from wintermute.loom.conversations import Conversations, Edits, Rewards
from wintermute.loom.folds import Folds
from wintermute.loom.sub_sessions import SubSessions
from wintermute.mailbox.inbox import Inbox
from wintermute.mailbox.outbox import Outbox
from wintermute.mailbox.rooms import KnownRooms
from wintermute.memory.core import Core, Places
from wintermute.memory.facts import Facts
from wintermute.memory.flat_file import FlatFile, Versions
from wintermute.owner import Owner
from wintermute.skills.skills import Skills
from wintermute.tasks.occurrences import Occurrences, TaskRuns
from wintermute.tasks.tasks import Tasks


class Stores:
    """What is stored in one data folder."""

    def __init__(
        self,
        database: Database,
        data_dir: Path,
        owner: Owner,
        clock: Clock,
        new_id: NewId,
        redact: Redaction = UNHIDDEN,
        *,
        timezone: str,
    ) -> None:
        self.database = database
        self.data_dir = data_dir
        self.owner = owner
        self.health = Health(database, clock)
        self.clock_marks = ClockMarks(database)
        self.inbox = Inbox(database, clock, redact)
        self.model_calls = ModelCalls(database, clock, new_id)
        self.known = KnownRooms(database, clock)
        self.conversations = Conversations(database, clock, new_id)
        self.casts = Casts(database, clock, new_id, redact)
        self.sub_sessions = SubSessions(database, clock, new_id)
        self.folds = Folds(database, clock, new_id)
        self.rewards = Rewards(database, clock, new_id)
        self.edits = Edits(database, clock, redact)
        self.prompts = data_dir / "prompts"
        self.changes = ChangeSets(database, clock, new_id)
        self.places = Places(data_dir, owner)
        self.edited = EditedFiles(database)
        self.core = Core(self.places, self.edited)
        self.facts = Facts(database, self.changes, clock, new_id)
        self.versions = Versions(database)
        self.memories = FlatFile(database, self.facts, self.places, self.changes)
        self.tasks = Tasks(database, self.changes, clock, new_id, owner, timezone)
        self.occurrences = Occurrences(database, clock, self.tasks.zone)
        self.outbox = Outbox(database, clock, new_id, redact, self.occurrences.said)
        self.runs = TaskRuns(database, clock)
        self.skills = Skills(data_dir / "skills", database, self.changes, owner.scope)
        self.undo = Undo(
            database,
            self.changes,
            {"fact": self.facts, "task": self.tasks},
            {"skill": self.skills},
        )
