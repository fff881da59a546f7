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

USER_ID = r"@[^:\s]+:\S+"
ORIGIN = r"https?://([\w.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?/?"
"""An address without a path."""
URL = r"https?://([\w.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/\S*)?"
"""A user and password are not allowed in it: they would be a secret in plain sight."""
A_URL = "https://example.org"
A_PROXY = "http://127.0.0.1:3128"
PROXY = r"http://([\w.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}/?"
A_USER = "@name:example.org"
LONGEST_ANSWER = 4096
"""The longest answer, in tokens, of a backend without a configured value."""
RESERVED: Mapping[str, str] = {
    **dict.fromkeys(("messages", "tools", "tool_choice", "stream", "stream_options", "n"), ""),
    **dict.fromkeys(("max_tokens", "max_completion_tokens"), "max_output_tokens"),
    "model": "model",
}
"""Fields of a request that Wintermute sets itself, with the backend's key for it, if there is one."""
VECTOR_BACKENDS = ("local_vector", "qdrant")
"""The memory backends with vectors."""
OF_THE_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]"
LEVELS = 2
SHORTEST_TOKEN = 20
DATA = Path("data")
WIKI = "wiki"
UNTOUCHED = "matrix.homeserver is still the example: change the lines marked EDIT"


def key(doc: str, default: Any = dataclasses.MISSING, **rules: Any) -> Any:
    """Declare a field of the configuration.

    `rules`: `least` and `most` for numbers; `pattern` for text, with an `example` that matches it;
    `suggests=True` for a choice whose nearest is named; `zone=True` for a time zone; `backend=True`
    for the name of one of `llm.backends`; `prompt=True` for a prompt file, which may be in the data
    folder as well; `command=True` for the command line of an agent; `reserved` for the names that a
    free section may not hold, with the key to write instead; `later=True` while the feature behind
    the key does not exist yet (accepted and checked, not written to config.yaml). A Path is
    relative to the folder of the file.
    """
    metadata = {"doc": doc, **rules}
    if default is not dataclasses.MISSING and callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def key_name(field: "dataclasses.Field[Any]") -> str:
    """Return the key of a field, without the `_` that Python needs after `from`."""
    return field.name.rstrip("_")


class Secret:
    """A secret that never shows itself; only `reveal` returns it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the secret itself, for the one call that needs it."""
        return self._value

    def __repr__(self) -> str:
        return "[secret]"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    homeserver: str = key(
        "URL of your homeserver.", pattern=URL, example="https://matrix.example.org"
    )
    user_id: str = key("The bot's own account.", pattern=USER_ID, example="@wintermute:example.org")
    password: Secret | None = key(
        "The bot's password: {env: NAME} or {file: PATH}. Each new login needs it.",
        None,
    )
    access_token: Secret | None = key(
        "Access token instead of a password: {env: NAME} or {file: PATH}.", None
    )
    device_id: str | None = key("Device id of the access token; empty: ask the homeserver.", None)
    device_name: str = key("Name of the bot's device in other clients.", "Wintermute")
    owner: str = key(
        "Your own Matrix id. The bot belongs to you.", pattern=USER_ID, example="@you:example.org"
    )
    allowed_users: tuple[str, ...] = key(
        "More people who may talk to the bot.", (), pattern=USER_ID, example=A_USER
    )
    allowed_rooms: tuple[str, ...] = key(
        "Rooms that the bot may join; empty: any room that you or allowed_users invite it to.",
        (),
        pattern=r"!\S+",
        example="!room:example.org",
    )
    encryption: Literal["required", "preferred", "off"] = key(
        "required: only encrypted rooms; preferred: unencrypted ones too; off: only unencrypted ones.",
        "required",
    )
    unsigned_devices: Literal["refuse", "accept"] = key(
        "Messages from devices that a person has not verified. refuse: no answer; accept: answer,"
        " but without the owner's rights.",
        "refuse",
    )
    proxy: str | None = key("HTTP proxy to the homeserver.", None, pattern=PROXY, example=A_PROXY)
    proxy_login: Secret | None = key(
        "NAME:PASSWORD for the homeserver's proxy; {env: NAME} or {file: PATH}.", None
    )
    mention_in_groups: bool = key("In groups, answer only when mentioned or replied to.", True)
    streaming: bool = key("Show answers while they are written.", True)

    @property
    def people(self) -> frozenset[str]:
        """All people who may talk to the bot."""
        return frozenset({self.owner, *self.allowed_users})


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """USD per million tokens."""

    input: float = key("Tokens read.", 0.0, least=0)
    cached: float | None = key(
        "Tokens read from the cache; empty: the price of input.", None, least=0
    )
    output: float = key("Tokens written.", 0.0, least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    base_url: str = key(
        "Address of the OpenAI-compatible API, usually ending in /v1.",
        pattern=URL,
        example="http://127.0.0.1:8080/v1",
    )
    model: str = key("Name of the model on that server.", example="my-model")
    api_key: Secret | None = key("API key, if needed; {env: NAME} or {file: PATH}.", None)
    context_tokens: int = key(
        "Context window: the most tokens that the model can read and write at once.",
        32768,
        least=1024,
    )
    max_output_tokens: int | None = key(
        "Longest answer, in tokens; empty: a quarter of context_tokens, at most 4096.",
        None,
        least=16,
    )
    first_token_s: float = key("How long to wait for the first word, in seconds.", 900.0, least=0.1)
    timeout_s: float = key("How long to wait for each next word, in seconds.", 300.0, least=0.1)
    size: Size = key(
        "full, or small: a shorter prompt and fewer tools, for small models.", "full", suggests=True
    )
    calls_as_text: bool | None = key(
        "The model writes tool calls as JSON text; empty: use what `check` found.",
        None,
    )
    extra: Mapping[str, Any] = key(
        "More fields for each request, such as {temperature: 0.7}.", dict, reserved=RESERVED
    )
    proxy: str | None = key("HTTP proxy to the server.", None, pattern=PROXY, example=A_PROXY)
    proxy_login: Secret | None = key(
        "NAME:PASSWORD for the backend's proxy; {env: NAME} or {file: PATH}.", None
    )
    vision: bool = key("The model understands images.", False, later=True)
    price: Price | None = key("USD per million tokens: {input, cached, output}.", None)

    @property
    def longest_answer(self) -> int:
        """The most tokens an answer may have."""
        return self.max_output_tokens or min(self.context_tokens // 4, LONGEST_ANSWER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    base: tuple[str, ...] = key(
        "Chats. If the first backend fails, the next one answers. Empty: the only one there is.",
        (),
        backend=True,
    )
    compaction: tuple[str, ...] = key("Summarise old messages.", (), backend=True)
    harvest: tuple[str, ...] = key("Find memories in conversations.", (), backend=True)
    reconstruction: tuple[str, ...] = key("Merge memories, and update core.md.", (), backend=True)
    dreaming: tuple[str, ...] = key("Tidy up at night.", (), backend=True)
    sub_sessions: tuple[str, ...] = key("Sub-sessions: parts of a large job.", (), backend=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcription:
    backend: str = key("Backend that transcribes voice messages.", backend=True)
    model: str = key("Its transcription model.")


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSettings:
    usd_per_day: float | None = key(
        "Daily limit in USD; needs the price of each backend.", None, least=0
    )
    tokens_per_day: int | None = key("Daily limit in tokens, read and written.", None, least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Llm:
    backends: Mapping[str, Backend] = key(
        "Model servers (backends), each by a name of your choice.", example="local"
    )
    roles: Roles = key("Names of the backends for each job; empty: the same as base.", Roles)
    transcription: Transcription | None = key("Voice messages.", None, later=True)
    max_retries: int = key("How often to try again when a backend fails.", 3, least=0, most=20)
    budget: BudgetSettings = key("Limits for each day, which ends at midnight.", BudgetSettings)
    record: bool = key(
        "Store every request to a model and its answer, for `loom export --bundle`.", False
    )

    @property
    def small(self) -> frozenset[str]:
        """The backends with small models."""
        return frozenset(name for name, each in self.backends.items() if each.size == "small")

    @property
    def sizes(self) -> frozenset[Size]:
        """The sizes of all backends' models."""
        return frozenset(each.size for each in self.backends.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings:
    provider: Literal["embedded", "endpoint", "none"] = key(
        "Who computes embeddings: embedded: this machine; endpoint: a backend; none: nobody.",
        "embedded",
    )
    backend: str | None = key(
        "With endpoint: a name from llm.backends; that server needs /embeddings.",
        None,
        backend=True,
    )
    model: str | None = key("Embedding model; empty: the model of that backend.", None)
    query_prefix: str | None = key(
        "Text that the embedding model needs before a search, such as 'query: '.", None
    )
    document_prefix: str | None = key(
        "The same before a memory, such as 'passage: '. After a change all embeddings are made again.",
        None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Qdrant:
    url: str | None = key("Address of the Qdrant server.", None, pattern=URL, example=A_URL)
    api_key: Secret | None = key("API key of the Qdrant server.", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    backend: Literal["local_vector", "fts5", "flat_file", "qdrant"] = key(
        "Memories that the model sees. flat_file: all; fts5: those that share words with the"
        " message; local_vector: also those with a similar meaning; qdrant: the same, from a server.",
        "flat_file",
    )
    top_k: int = key("How many memories the model sees with one message.", 10, least=1)
    working_set_size: int = key("How many memories the generated MEMORIES.txt has.", 50, least=1)
    merge_top_k: int = key(
        "How many older memories to compare with a new one, to merge them.", 3, least=1
    )
    merge_distance_cutoff: float = key(
        "Compare only memories whose embeddings differ at most this much (0 to 2).", 0.25, least=0
    )
    embeddings: Embeddings = key(
        "Embeddings find memories in other words and languages.", Embeddings
    )
    qdrant: Qdrant = key("For memory.backend: qdrant.", Qdrant)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentSizeLimits:
    """Limits in characters (P-048, P-053)."""

    memories: int = key("Memories.", 10000, least=1)
    tasks: int = key("Open tasks.", 5000, least=1)
    skills_total: int = key("List of skills.", 2000, least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    component_size_limits: ComponentSizeLimits = key(
        "Characters that a part of the prompt may have; the assistant shortens longer ones.",
        ComponentSizeLimits,
    )
    fold_at: float = key(
        "Summarise old messages when the prompt fills this share of the window.",
        0.8,
        least=0.1,
        most=1.0,
    )
    trigger_after_turns: int | None = key(
        "Also summarise after this many answers; choose far more than keep_recent.",
        None,
        least=1,
    )
    keep_recent: int = key("Newest messages that are never summarised.", 10, least=1)
    layout: Literal["append", "system"] = key(
        "append: changing parts come last, so that servers can cache the rest; system: they are in"
        " the system message.",
        "append",
        suggests=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    max_turns: int = key("Requests to the model for one message.", 30, least=1)
    max_seconds: float = key("Seconds for one message.", 900.0, least=1)
    max_tokens: int = key("Tokens for one message, read and written.", 200_000, least=1)
    require_done_tool: bool = key("The model must end each answer with the tool `done`.", False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    enabled: bool | None = key(
        "Begin each conversation with a greeting; empty: yes, unless the first backend has size small.",
        None,
    )
    language: str = key(
        "Language of the greeting; prompts/SEED_LANGUAGE.txt must exist.",
        "en",
        pattern=r"[a-z]{2,3}(-[A-Za-z]{2,4})?",
        example="en",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dreaming:
    enabled: bool = key("Tidy memories, tasks, skills and pages every night.", True)
    hour: int = key("Hour at which a night starts.", 1, least=0, most=23)
    minute: int = key("Minute of that hour.", 0, least=0, most=59)
    report: bool = key("Report to the owner in the morning, if something changed.", True)
    report_at: str = key(
        "Time of the report.",
        "08:00",
        pattern=OF_THE_CLOCK,
        example="08:00",
    )
    budget_tokens: int | None = key(
        "Limit of tokens for one night; empty: no limit.", 200_000, least=1
    )
    dedup_similarity: float = key(
        "Merge memories from this similarity on (1: the same).", 0.85, least=0, most=1
    )
    contradiction_similarity: float = key(
        "Look for contradictions from this similarity on.", 0.5, least=0, most=1
    )
    stale_days: int = key(
        "Put memories to rest (out of the prompt) that nobody used for this many days.", 90, least=1
    )
    stale_min_access: int = key("Never put memories to rest that were used this often.", 3, least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryHarvest:
    enabled: bool = key("Learn memories from what people tell the assistant.", True)
    message_threshold: int = key("Look for new memories after this many messages.", 20, least=1)
    min_messages: int = key(
        "Look earlier, after a pause, if there are at least this many new messages.", 5, least=1
    )
    inactivity_minutes: int = key("Length of that pause, in minutes.", 15, least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubSessionSettings:
    max_depth: int | None = key(
        "How deep sub-sessions may start others; 0: none; empty: 2, or 0 with size small.",
        None,
        least=0,
    )
    max_turns: int = key("Requests to the model for one sub-session.", 50, least=1)
    timeout_s: float = key("Seconds for one sub-session.", 300.0, least=1)
    max_parallel: int = key("Limit of sub-sessions at the same time.", 8, least=1)
    max_batch: int = key("Limit of sub-sessions that one tool call may start.", 50, least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiki:
    """The wiki's settings; a cathedral.json may hold them as well (W-053)."""

    store_path: Path | None = key("Folder of your pages; empty: wiki in data_dir.", None)
    runtime_prompt: Path | None = key(
        "Prompt file for opening pages in a chat; empty: prompts/runtime/default.md in data_dir.",
        None,
        prompt=True,
    )
    consolidation_prompt: Path | None = key(
        "Prompt file for making pages; empty: prompts/consolidation/default.md in data_dir.",
        None,
        prompt=True,
    )
    agent_cmds: Mapping[str, str] = key(
        'Other programs that make pages, by name: {claude: "claude -p --permission-mode acceptEdits"}.'
        " No shell reads the line. Wintermute fills in {store}, {sleep} and {conversation}.",
        dict,
        command=True,
    )
    model: str | None = key(
        "Model for pages: a name from llm.backends, or another model of the first; empty: as in chats.",
        None,
    )

    @property
    def prompts(self) -> tuple[Path, ...]:
        """The prompt files that are configured."""
        return tuple(filter(None, (self.runtime_prompt, self.consolidation_prompt)))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileToolSettings:
    roots: tuple[Path, ...] = key(
        "Folders that the assistant may read and write, besides its skills.", ()
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
        "Names of tools whose results are recorded but never shown to the model.", ()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Web:
    enabled: bool = key("Serve the web pages.", False)
    host: str = key("Address to listen on.", "127.0.0.1")
    port: int = key("Port to listen on.", 1345, least=1, most=65535)
    token: Secret | None = key(
        "Token to log in: {env: NAME} or {file: PATH}; empty: Wintermute makes data_dir/web.token.",
        None,
    )
    public_url: str | None = key(
        "Address that browsers use, if it is another, such as behind a proxy with TLS.",
        None,
        pattern=ORIGIN,
        example="https://wintermute.example.org",
    )

    @property
    def public_host(self) -> str:
        """The host name in the browsers' address; "" if none is configured."""
        return (urlsplit(self.public_url or "").hostname or "").lower()

    @property
    def is_exposed(self) -> bool:
        """True if other machines may reach the port. With a loopback `public_url` none can."""
        return not is_loopback(self.host) and not is_loopback(self.public_host)


def is_loopback(host: str) -> bool:
    """Return True if a name or address is this machine's own loopback."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    level: Literal["debug", "info", "warning", "error"] = key(
        "How much to log: debug is most, error least.", "info"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietHours:
    from_: str | None = key(
        "Time when they begin; empty: no quiet hours.", None, pattern=OF_THE_CLOCK, example="22:00"
    )
    to: str | None = key("Time when they end.", None, pattern=OF_THE_CLOCK, example="07:00")

    def covers(self, at: time) -> bool:
        """Return True if a time of day is within the quiet hours; they may pass midnight."""
        if self.from_ is None or self.to is None:
            return False
        begin, end = time.fromisoformat(self.from_), time.fromisoformat(self.to)
        return begin <= at < end if begin < end else not end <= at < begin

    def end_after(self, now: datetime, zone: ZoneInfo) -> datetime | None:
        """Return the end of the quiet hours if `now` is within them."""
        here = now.astimezone(zone)
        if self.to is None or not self.covers(here.time()):
            return None
        end = time.fromisoformat(self.to).replace(fold=here.fold)
        day = here.date() + timedelta(days=here.time() >= end)
        return datetime.combine(day, end, zone).astimezone(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    data_dir: Path = key("Folder of everything that Wintermute stores.", DATA)
    timezone: str = key(
        "Your time zone, such as Europe/Berlin. Without this key: the machine's.",
        "UTC",
        zone=True,
    )
    matrix: Matrix = key("The bot's Matrix account and who may talk to it.")
    llm: Llm = key("Model servers, and which of them does what.")
    memory: Memory = key("Long-term memory.", Memory)
    context: Context = key("The prompt: what the model reads for each answer.", Context)
    loop: LoopSettings = key("Limits for one message.", LoopSettings)
    seed: Seed = key("The greeting that opens a conversation.", Seed)
    dreaming: Dreaming = key("Nights: tidying memories, tasks, skills and pages.", Dreaming)
    memory_harvest: MemoryHarvest = key("Learning memories from conversations.", MemoryHarvest)
    sub_sessions: SubSessionSettings = key(
        "Sub-sessions: parts of a large job, which can run side by side.", SubSessionSettings
    )
    wiki: Wiki = key("Markdown pages that link to each other.", Wiki)
    tools: Tools = key("Tools of the assistant.", Tools)
    web: Web = key("The web pages: chat and wiki in a browser.", Web)
    quiet: QuietHours = key(
        "Hours in which reports and notices wait; reminders and answers do not.", QuietHours
    )
    log: Log = key("Logging.", Log)

    @property
    def owner(self) -> Owner:
        """The owner of the assistant."""
        return Owner(self.matrix.owner)

    @property
    def nights(self) -> Dreaming:
        """The settings of the nights. A report within the quiet hours waits for their end."""
        end = self.quiet.to
        if end is None or not self.quiet.covers(time.fromisoformat(self.dreaming.report_at)):
            return self.dreaming
        return dataclasses.replace(self.dreaming, report_at=end)

    @property
    def wiki_store(self) -> Path:
        """The folder of the owner's pages."""
        return self.wiki.store_path or self.data_dir / WIKI

    @property
    def levels(self) -> int:
        """The levels of sub-sessions allowed below a chat."""
        written = self.sub_sessions.max_depth
        return written if written is not None else 0 if self._is_small else LEVELS

    @property
    def opening(self) -> Seed:
        """The greeting's settings; a small model has none unless it is configured."""
        written = self.seed.enabled
        enabled = written if written is not None else not self._is_small
        return dataclasses.replace(self.seed, enabled=enabled)

    @property
    def _is_small(self) -> bool:
        """True if the first model needs short texts."""
        return not self.llm.small.isdisjoint(self.llm.roles.base[:1])


def proxied(settings: Matrix | Backend) -> str | None:
    """Return the address of the proxy with its login, for the libraries alone."""
    if settings.proxy is None or settings.proxy_login is None:
        return settings.proxy
    name, _, password = settings.proxy_login.reveal().partition(":")
    login = f"{quote(name, safe='')}:{quote(password, safe='')}"
    return settings.proxy.replace("://", f"://{login}@", 1)


def is_still_example(config: Config) -> bool:
    """Return True while the homeserver's address is still the example's."""
    (field,) = (f for f in dataclasses.fields(config.matrix) if f.name == "homeserver")
    return bool(config.matrix.homeserver == field.metadata["example"])
