"""All failures that Wintermute expects, as one tree of classes. Each message says what to do.

WintermuteError
├── ConfigurationError          the person's own files or account need a change: exit code 2
│   ├── DatabaseUnusable        missing, corrupt, too new, or no driver for it
│   │   └── DatabaseOutdated    of an earlier version, and opened only for reading
│   ├── PromptUnreadable        a prompt file that is not text, and no earlier text is known
│   ├── LoginRefused            the homeserver does not accept our token or password
│   │   ├── LoginExpired        M_UNKNOWN_TOKEN with soft logout: the device logs in again
│   │   └── LoginEnded          M_UNKNOWN_TOKEN without it: the device is gone
│   └── AnotherCopyRuns         two daemons use one account, or copies of one data folder
├── DeviceSpent                 it takes no new keys of our device after a rollback: make a new device
├── DataFolderInUse             another daemon holds this data folder: exit code 1 (T-039)
├── StorageBlocked              our database cannot be written now: nothing is half written
│   ├── DiskFull                no room on the disk
│   └── DatabaseLocked          another program holds a lock on it
├── HomeserverUnavailable       no answer or "later", or our encryption is not ready: try again
│   ├── AccountBlocked          it refuses the bot's account until a person does something
│   └── KeyStoreBlocked         the keys cannot be written now, so encryption waits as well
├── SendRefused                 the homeserver will never accept this event as it is
│   └── ApprovalNeeded          it wants a password, or a person's approval on a web page
├── AudienceChanged             people joined or left while a message was sent: decide again
├── MemoryUnavailable           memories cannot be searched now; the prompt has none
│   └── EmbeddingsUnavailable   no embeddings now, or unusable ones: search by words only
│       └── EmbedderNotReady    it is starting or busy: a later query may work
├── QuestionWithdrawn           the basis of a question to a model changed: do not ask, or ask anew
├── FileUnusable                a file that is not readable text; the message continues its name
├── MemoryFileUnusable          a memories or core file that cannot be read or written
├── StoreMissing                no wiki store in the named folder
├── StoreUnusable               a wiki store that cannot be written, or a file of it that is damaged
├── StoreChanged                pages were edited while a job read them: retried later
├── PageRefused                 a page that breaks a rule of path, frontmatter or size: not saved
├── StoreBusy                   another job or night writes the pages, or answers here
├── WebUnavailable              the web door cannot be opened; everything else goes on without it
├── ToolFailed                  an expected failure of a tool; the model sees it
└── ModelError                  a model call that gave no usable answer
    ├── ModelUnavailable        outage: every backend of the role tried, retries spent
    │   └── ModelSilent         the last backend stopped sending, perhaps within its answer
    ├── ModelRefused            the request itself or its key is wrong: a person must fix it
    │   ├── KeyRefused          the key is wrong or missing
    │   └── ContentRefused      its content is refused; other content may succeed
    │       └── ContextRefused  it is refused even without the newest message
    ├── ContextTooLarge         the request does not fit the model's window
    │   └── PromptTooLarge      a part of the prompt is too large; a person can shorten it
    ├── BudgetSpent             the day's ceiling leaves no room for another call
    ├── NotQuiet                a background question waits for the night, or for idle chats
    ├── EmptyReply              the answer has neither text nor calls, retries spent
    └── AnswerUnusable          the answer was not in the required form, twice
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime


class WintermuteError(Exception):
    """An expected failure. `str()` is one line that a person can act on."""


class ConfigurationError(WintermuteError):
    """The owner has to change a file or the account before we can run."""


class DataFolderInUse(WintermuteError):
    """Another daemon uses the same data folder."""


class DatabaseUnusable(ConfigurationError):
    """The database cannot be opened safely."""


class DatabaseOutdated(DatabaseUnusable):
    """A database of an earlier version that was opened only for reading; the next writer upgrades it."""


class PromptUnreadable(ConfigurationError):
    """A prompt file exists but is not text (F-031)."""


class LoginRefused(ConfigurationError):
    """The homeserver refuses our token, or user and password."""


class LoginExpired(LoginRefused):
    """M_UNKNOWN_TOKEN with `soft_logout`: our device and its keys are kept, and need a new login."""


class LoginEnded(LoginRefused):
    """M_UNKNOWN_TOKEN without `soft_logout`: the login ended, or somebody signed our device out."""


class AnotherCopyRuns(ConfigurationError):
    """Another process runs with our login.

    Either another installation uses our account with a device of its own (`instances`, F-047), or
    a copy of this data folder uses our device and its keys (`rollback`, F-009).
    """


class DeviceSpent(WintermuteError):
    """The homeserver accepts no new encryption keys of this device."""


class StorageBlocked(WintermuteError):
    """Nothing can be written now. A command fails; the daemon waits and goes on."""


class DiskFull(StorageBlocked):
    """There is no room on the disk."""


class DatabaseLocked(StorageBlocked):
    """Another program holds a lock on the database."""


class HomeserverUnavailable(WintermuteError):
    """The homeserver did not answer, or asked us to come back later.

    Also raised while encryption is not ready, such as for a person whose identity has changed: in
    each case the caller tries again later.
    """

    def __init__(self, message: str, retry_after: float | None = None, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
        """The status of the HTTP answer; 0 without one."""
        self.retry_after = retry_after
        """Seconds the server asked us to wait, if it named a time."""


class AccountBlocked(HomeserverUnavailable):
    """The homeserver refuses the bot's account until a person does something (F-046)."""


class KeyStoreBlocked(HomeserverUnavailable):
    """Nio's key store cannot be written: full, locked or read-only. Callers retry it like an
    unavailable homeserver; it is logged where it is noticed.
    """


class SendRefused(WintermuteError):
    """The homeserver refuses this event for good (forbidden, too large)."""

    def __init__(self, message: str, code: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
        """The status of the HTTP answer, which may say more than the code."""
        self.code = code
        """The Matrix error code, such as `M_FORBIDDEN`."""


class ApprovalNeeded(SendRefused):
    """The homeserver wants user-interactive authentication: a password, or an approval on a web page."""

    def __init__(self, flows: tuple[tuple[str, ...], ...], session: str, page: str) -> None:
        super().__init__("the homeserver wants more than our login for this", "M_UNAUTHORIZED")
        self.flows = flows
        """The accepted ways to authenticate, each a list of stages such as `m.login.password`."""
        self.session = session
        self.page = page
        """The web page for the approval; "" if the homeserver offers none."""

    @property
    def by_password(self) -> bool:
        """True if a password alone is enough."""
        return ("m.login.password",) in self.flows


class AudienceChanged(WintermuteError):
    """The readers of a room changed after it was decided to send something there (F-002)."""


class MemoryUnavailable(WintermuteError):
    """A search in memory failed (P-014)."""


class EmbeddingsUnavailable(MemoryUnavailable):
    """There are no embeddings now: search uses words only, and the embedding is done later (M-008)."""


class EmbedderNotReady(EmbeddingsUnavailable):
    """A query would have to wait too long for the embedder; nothing is wrong."""


class QuestionWithdrawn(WintermuteError):
    """The basis of a background question was changed or withdrawn, so it is not asked."""


class FileUnusable(WintermuteError):
    """A file that is not a plain file, too long or not text.

    The message continues the file name: `NAME is too long`.
    """


class MemoryFileUnusable(WintermuteError):
    """A memories or core file that cannot be read or written. The facts themselves are in the database."""


class StoreMissing(WintermuteError):
    """There is no wiki store in this folder (W-005)."""


class StoreUnusable(WintermuteError):
    """A wiki store that cannot be written, or has a damaged file of ours (W-039)."""


class StoreChanged(WintermuteError):
    """Pages were changed since a job on them began (W-066)."""


class PageRefused(WintermuteError):
    """A page that breaks a rule and is not saved (V-022)."""


class StoreBusy(WintermuteError):
    """Another job or night is writing pages (W-068), or answering in this conversation (W-072)."""


class WebUnavailable(WintermuteError):
    """The web door cannot open: its port is taken, its address is not ours, or a token or the
    framework is missing.
    """


class ToolFailed(WintermuteError):
    """A tool could not do what was asked; the model sees the message and can react (L-028)."""


class ModelError(WintermuteError):
    """A model call that gave no usable answer."""


class ModelUnavailable(ModelError):
    """Every backend of the role was tried as often as allowed (L-034)."""


class ModelSilent(ModelUnavailable):
    """The last backend sent nothing for too long, before or within its answer (F-063)."""


class ModelRefused(ModelError):
    """The backend refuses the request or the key; trying again cannot help (L-035)."""


class KeyRefused(ModelRefused):
    """A wrong or missing API key."""


class ContentRefused(ModelRefused):
    """A provider refuses the content of a request; it is sent to no other provider (F-038)."""

    refused_by = ""
    """The name of the backend that refused it."""


class ContextRefused(ContentRefused):
    """A provider refuses the context even without the newest message; the text names it (F-038)."""


class ContextTooLarge(ModelError):
    """The request is larger than the backend's context window (L-036)."""

    def __init__(self, message: str, wrong: str | None = None, refused_by: str = "") -> None:
        super().__init__(message)
        self.wrong = wrong
        """The advice if `context_tokens` in config.yaml is larger than the real window, else None."""
        self.refused_by = refused_by
        """The name of the backend that refused it; "" if we did not send it."""


class PromptTooLarge(ContextTooLarge):
    """One part of the prompt alone is larger than the window; the text names it (F-023)."""


class BudgetSpent(ModelError):
    """The call might exceed the day's budget (L-085). This is not an outage."""

    def __init__(self, message: str, until: datetime | None) -> None:
        super().__init__(message)
        self.until = until
        """The beginning of the next day of the budget, in UTC; None: no day has room for such a call."""


class NotQuiet(ModelError):
    """A background question waits for the night, or for six hours without a message (M-064)."""

    def __init__(self, until: datetime) -> None:
        super().__init__("models are asked for this at night, or after six quiet hours")
        self.until = until


class EmptyReply(ModelError):
    """The model's answers had neither text nor calls, also after retries (L-015)."""


class AnswerUnusable(ModelError):
    """The answer was not JSON of the required form, twice (M-072)."""


@contextmanager
def ungrouped() -> Iterator[None]:
    """Replace an exception group by the first expected failure in it."""
    problem: Exception | None = None
    try:
        yield
    except* WintermuteError as group:
        problem = group
    while isinstance(problem, ExceptionGroup):
        problem = problem.exceptions[0]
    if problem is not None:
        raise problem
