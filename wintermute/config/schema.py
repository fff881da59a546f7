"""Every key of config.yaml: its type, default, limits and one line of explanation.

Values are frozen. The reader checks a file against it, and docs/configuration.md is written from it.
Defaults follow DESIGN §6.
"""

import dataclasses
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit
from zoneinfo import ZoneInfo

from wintermute.messages import Size
from wintermute.owner import Owner


def key(doc: str, default: Any = dataclasses.MISSING, **rules: Any) -> Any:
    """A field of the configuration.

    `rules`: `least` and `most` for numbers; `pattern` for text, with an `example` that matches
    it; `suggests=True` for a choice whose nearest is named; `zone=True` for a time zone; `backend=True` for the name of one of `llm.backends`;
    `prompt=True` for a prompt file, which may be in the data folder as well; `command=True` for the
    command line of an agent;
    `reserved` for the names that a free section may not hold, with the key to write instead;
    `later=True` while the feature behind the key does not exist yet (accepted and checked, not
    written to config.yaml). A Path is relative to the folder of the file.
    """
    metadata = {"doc": doc, **rules}
    if default is not dataclasses.MISSING and callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def key_name(field: "dataclasses.Field[Any]") -> str:
    """Name the key of a field: `from` is no name in Python."""
    return field.name.rstrip("_")


class Secret:
    """A value that never shows itself; only `reveal` gives it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The secret itself, for the one call that needs it."""
        return self._value

    def __repr__(self) -> str:
        return "[secret]"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


USER_ID = r"@[^:\s]+:\S+"
ORIGIN = r"https?://([\w.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?/?"
"""An address without a path."""
URL = r"https?://([\w.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/\S*)?"
"""No user and password in it: those would be a secret in plain sight."""
A_URL = "https://example.org"
A_PROXY = "http://127.0.0.1:3128"
PROXY = r"http://([\w.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}/?"
A_USER = "@name:example.org"


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    homeserver: str = key(
        "URL of your homeserver.", pattern=URL, example="https://matrix.example.org"
    )
    user_id: str = key("The bot's own account.", pattern=USER_ID, example="@wintermute:example.org")
    password: Secret | None = key(
        "Wintermute logs in with it at first, once after the login has ended, and for a new device; {env: NAME} or {file: PATH}.",
        None,
    )
    access_token: Secret | None = key("Instead of a password.", None)
    device_id: str | None = key("The access token's device; left out, the server is asked.", None)
    device_name: str = key("What other clients call the bot's device.", "Wintermute")
    owner: str = key(
        "Your own Matrix id: the one person the bot belongs to.",
        pattern=USER_ID,
        example="@you:example.org",
    )
    allowed_users: tuple[str, ...] = key(
        "More people who may talk to the bot.", (), pattern=USER_ID, example=A_USER
    )
    allowed_rooms: tuple[str, ...] = key(
        "Room ids the bot stays in; empty: any room an allowed person invites it to.",
        (),
        pattern=r"!\S+",
        example="!room:example.org",
    )
    encryption: Literal["required", "preferred", "off"] = key(
        "required: encrypted rooms only; preferred: plain rooms too; off: no encrypted rooms.",
        "required",
    )
    unsigned_devices: Literal["refuse", "accept"] = key(
        "Sessions that a person has not verified: refuse their messages, or accept: answer them "
        "with the rights of another person.",
        "refuse",
    )
    proxy: str | None = key("HTTP proxy to the homeserver.", None, pattern=PROXY, example=A_PROXY)
    proxy_login: Secret | None = key(
        "NAME:PASSWORD for the homeserver's proxy; {env: NAME} or {file: PATH}.", None
    )
    mention_in_groups: bool = key("In rooms with several people answer only when mentioned.", True)
    streaming: bool = key("Show answers while they are written.", True)

    @property
    def people(self) -> frozenset[str]:
        """Everybody who may talk to the bot."""
        return frozenset({self.owner, *self.allowed_users})


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """USD per million tokens."""

    input: float = key("Prompt tokens.", 0.0, least=0)
    cached: float | None = key(
        "Prompt tokens the provider had cached; empty: as input.", None, least=0
    )
    output: float = key("Answer tokens.", 0.0, least=0)


LONGEST_ANSWER = 4096
"""Of a backend whose configuration names no other."""
RESERVED: Mapping[str, str] = {
    **dict.fromkeys(("messages", "tools", "tool_choice", "stream", "stream_options", "n"), ""),
    **dict.fromkeys(("max_tokens", "max_completion_tokens"), "max_output_tokens"),
    "model": "model",
}
"""What a request says by itself, and the key of the backend that says it, if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    base_url: str = key(
        "Where the OpenAI-compatible API answers, usually ending in /v1.",
        pattern=URL,
        example="http://127.0.0.1:8080/v1",
    )
    model: str = key("The model's name there.", example="my-model")
    api_key: Secret | None = key("Key, if the server wants one; {env: NAME} or {file: PATH}.", None)
    context_tokens: int = key("Size of the model's window.", 32768, least=1024)
    max_output_tokens: int | None = key(
        "Longest answer to ask for; empty: a quarter of context_tokens, at most 4096.",
        None,
        least=16,
    )
    first_token_s: float = key(
        "Longest silence before an answer begins, in seconds; in all, four times that.",
        900.0,
        least=0.1,
    )
    timeout_s: float = key("Longest silence within an answer, in seconds.", 300.0, least=0.1)
    size: Size = key(
        "small: short texts and few tools, for models that cannot keep many rules in mind.",
        "full",
        suggests=True,
    )
    calls_as_text: bool | None = key(
        "Read an answer that is, or ends with, the JSON of a call as that call; empty: if `check` found"
        " that the model needs it.",
        None,
    )
    extra: Mapping[str, Any] = key(
        "More fields for each request, sent as they stand here: {temperature: 0.7}.",
        dict,
        reserved=RESERVED,
    )
    proxy: str | None = key("HTTP proxy to the server.", None, pattern=PROXY, example=A_PROXY)
    proxy_login: Secret | None = key(
        "NAME:PASSWORD for the backend's proxy; {env: NAME} or {file: PATH}.", None
    )
    vision: bool = key("The model understands images.", False, later=True)
    price: Price | None = key("USD per million tokens: {input, cached, output}.", None)

    @property
    def longest_answer(self) -> int:
        """Tokens an answer may have."""
        return self.max_output_tokens or min(self.context_tokens // 4, LONGEST_ANSWER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    base: tuple[str, ...] = key(
        "Backends for chats, in failover order; empty: the only one there is.", (), backend=True
    )
    compaction: tuple[str, ...] = key("For summaries of old conversation.", (), backend=True)
    harvest: tuple[str, ...] = key("For picking memories out of conversations.", (), backend=True)
    reconstruction: tuple[str, ...] = key("For merging memories, and core.md.", (), backend=True)
    dreaming: tuple[str, ...] = key("For the nightly tidying.", (), backend=True)
    sub_sessions: tuple[str, ...] = key("For delegated work.", (), backend=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcription:
    backend: str = key("Backend that transcribes voice messages.", backend=True)
    model: str = key("Its transcription model.")


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSettings:
    usd_per_day: float | None = key(
        "Most to spend, in USD, by the backends' prices.", None, least=0
    )
    tokens_per_day: int | None = key("Most tokens, in and out together.", None, least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Llm:
    backends: Mapping[str, Backend] = key(
        "Model servers by a name of your choice.", example="local"
    )
    roles: Roles = key("Which backends do what; an empty list means: as base.", Roles)
    transcription: Transcription | None = key("Voice messages.", None, later=True)
    max_retries: int = key("Extra attempts per backend when it fails.", 3, least=0, most=20)
    budget: BudgetSettings = key("Ceilings for one day, from midnight to midnight.", BudgetSettings)
    record: bool = key("Keep every request and answer for replay.", False)

    @property
    def small(self) -> frozenset[str]:
        """The backends whose models are small."""
        return frozenset(name for name, each in self.backends.items() if each.size == "small")

    @property
    def sizes(self) -> frozenset[Size]:
        """Those of all backends."""
        return frozenset(each.size for each in self.backends.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings:
    provider: Literal["embedded", "endpoint", "none"] = key(
        "Where meanings are computed: embedded: here, without a network; endpoint: by a backend;"
        " none: memories are found by their words alone.",
        "embedded",
    )
    backend: str | None = key(
        "For provider endpoint: which of llm.backends; it must have /embeddings.",
        None,
        backend=True,
    )
    model: str | None = key("Its embedding model; empty: the model of that backend.", None)
    query_prefix: str | None = key(
        "What the model wants to stand before what is searched for, such as 'query: '.", None
    )
    document_prefix: str | None = key(
        "And before what is to be found, such as 'passage: '; changed, all is embedded anew.", None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Qdrant:
    url: str | None = key("Address of the Qdrant server.", None, pattern=URL, example=A_URL)
    api_key: Secret | None = key("Its key.", None)


BY_MEANING = ("local_vector", "qdrant")
"""The backends that have vectors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    backend: Literal["local_vector", "fts5", "flat_file", "qdrant"] = key(
        "How memories are kept. flat_file: all in every prompt, editable as MEMORIES.txt; fts5: those"
        " with the words of a message; local_vector: and those of its meaning; qdrant: by a server.",
        "flat_file",
    )
    top_k: int = key("Memories shown for one message.", 10, least=1)
    working_set_size: int = key("Facts in the generated MEMORIES.txt.", 50, least=1)
    merge_top_k: int = key("Related facts considered for a merge.", 3, least=1)
    merge_distance_cutoff: float = key("How near they must be.", 0.25, least=0)
    embeddings: Embeddings = key(
        "What memories mean, so that other words find them as well.", Embeddings
    )
    qdrant: Qdrant = key("For backend: qdrant.", Qdrant)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentSizeLimits:
    """Characters (P-048, P-053)."""

    memories: int = key("The memories.", 10000, least=1)
    tasks: int = key("The active tasks.", 5000, least=1)
    skills_total: int = key("The list of skills.", 2000, least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    component_size_limits: ComponentSizeLimits = key(
        "Characters of a prompt part; above, the assistant is asked to shorten it.",
        ComponentSizeLimits,
    )
    fold_at: float = key("Share of the window that triggers a summary.", 0.8, least=0.1, most=1.0)
    trigger_after_turns: int | None = key(
        "Summarise after so many turns as well; well above keep_recent, or each message is summed up.",
        None,
        least=1,
    )
    keep_recent: int = key("Messages that stay as they are.", 10, least=1)
    layout: Literal["append", "system"] = key(
        "append: what changes stands with the newest message, so that servers keep what they have"
        " read; system: all of it in the system message, anew for each request.",
        "append",
        suggests=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    max_turns: int = key("Model answers for one message.", 30, least=1)
    max_seconds: float = key("Seconds for one message.", 900.0, least=1)
    max_tokens: int = key("Tokens in and out for one message.", 200_000, least=1)
    require_done_tool: bool = key("End an answer only by the tool `done`.", False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    enabled: bool | None = key(
        "Open each new conversation with a greeting; empty: yes, unless the first model is small.",
        None,
    )
    language: str = key(
        "Its language: that of a file prompts/SEED_LANGUAGE.txt.",
        "en",
        pattern=r"[a-z]{2,3}(-[A-Za-z]{2,4})?",
        example="en",
    )


OF_THE_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dreaming:
    enabled: bool = key("Tidy every night what is remembered.", True)
    hour: int = key("When the nightly tidying starts.", 1, least=0, most=23)
    minute: int = key("Minute of that hour.", 0, least=0, most=59)
    report: bool = key("Tell the owner in the morning what was done, if anything was.", True)
    report_at: str = key(
        "When that is, by the clock.",
        "08:00",
        pattern=OF_THE_CLOCK,
        example="08:00",
    )
    budget_tokens: int | None = key("Most tokens for one night; empty: no limit.", 200_000, least=1)
    dedup_similarity: float = key("Facts this alike are merged.", 0.85, least=0, most=1)
    contradiction_similarity: float = key("Facts this alike are compared.", 0.5, least=0, most=1)
    stale_days: int = key("Facts not used for so many days come to rest.", 90, least=1)
    stale_min_access: int = key("Unless they were used so often.", 3, least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryHarvest:
    enabled: bool = key("Pick memories out of what people tell the assistant.", True)
    message_threshold: int = key("Messages that start a harvest.", 20, least=1)
    min_messages: int = key("Fewest messages that silence makes one of.", 5, least=1)
    inactivity_minutes: int = key("So many minutes of silence.", 15, least=1)


LEVELS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SubSessionSettings:
    max_depth: int | None = key(
        "Levels of sub-sessions below a chat; 0: none; empty: 2, or none where the first model is"
        " small.",
        None,
        least=0,
    )
    max_turns: int = key("Model answers for one sub-session.", 50, least=1)
    timeout_s: float = key("Longest time for one sub-session, in seconds.", 300.0, least=1)
    max_parallel: int = key("How many work at once.", 8, least=1)
    max_batch: int = key("Most of them in one call.", 50, least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiki:
    """Also what a cathedral.json may say (W-053)."""

    store_path: Path | None = key("Folder of your pages; empty: wiki in data_dir.", None)
    runtime_prompt: Path | None = key(
        "Prompt file that tells how to recall pages; empty: prompts/runtime/default.md in data_dir.",
        None,
        prompt=True,
    )
    consolidation_prompt: Path | None = key(
        "Prompt file that makes pages of a conversation; empty: prompts/consolidation/default.md there.",
        None,
        prompt=True,
    )
    agent_cmds: Mapping[str, str] = key(
        'Other programs that make pages, by name: {claude: "claude -p --permission-mode acceptEdits"}.'
        " Split without a shell; {store}, {sleep} and {conversation} are filled in.",
        dict,
        command=True,
    )
    model: str | None = key(
        "Who works on pages: one of llm.backends, or a model to ask the first backend of base for;"
        " empty: as chats.",
        None,
    )

    @property
    def prompts(self) -> tuple[Path, ...]:
        """The prompt files that are named."""
        return tuple(filter(None, (self.runtime_prompt, self.consolidation_prompt)))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileToolSettings:
    roots: tuple[Path, ...] = key(
        "Folders the assistant may read and write, besides its skills.", ()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    enabled: bool = key("Allow commands in a sandbox.", False)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebTools:
    searxng_url: str | None = key("Search service.", None, pattern=URL, example=A_URL)
    allow_private: tuple[str, ...] = key("Private addresses that may be fetched.", ())


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    command: tuple[str, ...] = key("Program and arguments.", ())
    url: str | None = key("Or its address.", None, pattern=URL, example=A_URL)
    env: Mapping[str, Secret] = key("Secrets of its environment.", dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    files: FileToolSettings = key("Files.", FileToolSettings)
    shell: Shell = key("Shell.", Shell, later=True)
    web: WebTools = key("Web.", WebTools, later=True)
    mcp: Mapping[str, McpServer] = key("MCP servers by name.", dict, later=True)
    ephemeral: tuple[str, ...] = key(
        "Tools whose results are kept in the record only: the model never sees them.", ()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Web:
    enabled: bool = key("Serve the web pages.", False)
    host: str = key("Address to listen on.", "127.0.0.1")
    port: int = key("Port to listen on.", 1345, least=1, most=65535)
    token: Secret | None = key(
        "Access token; {env: NAME} or {file: PATH}; empty: one is made in data_dir/web.token.", None
    )
    public_url: str | None = key(
        "Address that browsers use, if it is another one, as behind a proxy with TLS.",
        None,
        pattern=ORIGIN,
        example="https://wintermute.example.org",
    )

    @property
    def public_host(self) -> str:
        """The name in the address that browsers use; "" where there is none."""
        return (urlsplit(self.public_url or "").hostname or "").lower()

    @property
    def is_exposed(self) -> bool:
        """Decide if other machines may reach the port; a loopback `public_url` says that none can."""
        return not is_loopback(self.host) and not is_loopback(self.public_host)


SHORTEST_TOKEN = 20


def is_loopback(host: str) -> bool:
    """Decide if a name or address is this machine's own loopback."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    level: Literal["debug", "info", "warning", "error"] = key("How much to log.", "info")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietHours:
    from_: str | None = key(
        "When they begin; empty: there are none.", None, pattern=OF_THE_CLOCK, example="22:00"
    )
    to: str | None = key("When they end.", None, pattern=OF_THE_CLOCK, example="07:00")

    def covers(self, at: time) -> bool:
        """Decide if a time of day is within them; they may pass midnight."""
        if self.from_ is None or self.to is None:
            return False
        begin, end = time.fromisoformat(self.from_), time.fromisoformat(self.to)
        return begin <= at < end if begin < end else not end <= at < begin

    def until(self, now: datetime, zone: ZoneInfo) -> datetime | None:
        """Their end, if `now` is within them."""
        here = now.astimezone(zone)
        if self.to is None or not self.covers(here.time()):
            return None
        end = time.fromisoformat(self.to).replace(fold=here.fold)
        day = here.date() + timedelta(days=here.time() >= end)
        return datetime.combine(day, end, zone).astimezone(UTC)


DATA = Path("data")
WIKI = "wiki"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    data_dir: Path = key("Where everything is kept.", DATA)
    timezone: str = key(
        "Your time zone, such as Europe/Berlin; left out: that of the machine.", "UTC", zone=True
    )
    matrix: Matrix = key("The bot's Matrix account and who may talk to it.")
    llm: Llm = key("The models that think.")
    memory: Memory = key("Long-term memory.", Memory)
    context: Context = key("What fits into one prompt.", Context)
    loop: LoopSettings = key("Limits for one message.", LoopSettings)
    seed: Seed = key("The greeting that opens a conversation.", Seed)
    dreaming: Dreaming = key("Nightly tidying.", Dreaming)
    memory_harvest: MemoryHarvest = key("Picking memories out of conversations.", MemoryHarvest)
    sub_sessions: SubSessionSettings = key("Work that the assistant hands out.", SubSessionSettings)
    wiki: Wiki = key("Pages that link, and grow out of conversations.", Wiki)
    tools: Tools = key("What the assistant may do.", Tools)
    web: Web = key("The web pages: chat and wiki in a browser.", Web)
    quiet: QuietHours = key(
        "Hours in which reports and notices wait; reminders and answers do not.", QuietHours
    )
    log: Log = key("Logging.", Log)

    @property
    def owner(self) -> Owner:
        """Whose assistant this is."""
        return Owner(self.matrix.owner)

    @property
    def nights(self) -> Dreaming:
        """Nightly tidying, whose report waits for the end of the quiet hours."""
        end = self.quiet.to
        if end is None or not self.quiet.covers(time.fromisoformat(self.dreaming.report_at)):
            return self.dreaming
        return dataclasses.replace(self.dreaming, report_at=end)

    @property
    def wiki_store(self) -> Path:
        """Where the owner's pages are."""
        return self.wiki.store_path or self.data_dir / WIKI

    @property
    def levels(self) -> int:
        """How many levels of sub-sessions may be below a chat."""
        written = self.sub_sessions.max_depth
        return written if written is not None else 0 if self._is_small else LEVELS

    @property
    def opening(self) -> Seed:
        """The greeting, and whether there is to be one."""
        written = self.seed.enabled
        enabled = written if written is not None else not self._is_small
        return dataclasses.replace(self.seed, enabled=enabled)

    @property
    def _is_small(self) -> bool:
        """Whether the model that is asked first needs short texts."""
        return not self.llm.small.isdisjoint(self.llm.roles.base[:1])


UNTOUCHED = "matrix.homeserver is still the example: change the lines marked EDIT"


def proxied(settings: Matrix | Backend) -> str | None:
    """Give the address of the proxy with the login it wants, for the libraries alone."""
    if settings.proxy is None or settings.proxy_login is None:
        return settings.proxy
    name, _, password = settings.proxy_login.reveal().partition(":")
    login = f"{quote(name, safe='')}:{quote(password, safe='')}"
    return settings.proxy.replace("://", f"://{login}@", 1)


def is_untouched(config: Config) -> bool:
    """Whether nobody has said yet where the bot lives: the address is still the example's."""
    (field,) = (f for f in dataclasses.fields(config.matrix) if f.name == "homeserver")
    return bool(config.matrix.homeserver == field.metadata["example"])
