"""The short config.yaml that `wintermute init` writes: the keys that people change most."""

from collections.abc import Iterator, Mapping

HEAD = """\
# Wintermute's settings that people change most; docs/configuration.md has all of them.
# Text that begins with @ ! & or * needs quotes. `wintermute check` finds mistakes.
"""
EDIT = "EDIT: "
BACKEND = "llm.backends.NAME"
TOKEN = "matrix.access_token"
LINES: tuple[tuple[str, str, str], ...] = (
    ("data_dir", "data", "Folder of everything that Wintermute keeps."),
    ("timezone", "UTC", "Your time zone."),
    ("matrix.homeserver", '"https://matrix.example.org"', "EDIT: Address of your homeserver."),
    ("matrix.user_id", '"@wintermute:example.org"', "EDIT: The bot's own account."),
    ("matrix.password", "{env: WINTERMUTE_PASSWORD}", "Its password: {env: NAME} or {file: PATH}."),
    (TOKEN, "", "A token in place of the password."),
    ("matrix.owner", '"@you:example.org"', "EDIT: Your own Matrix id; the bot obeys you."),
    ("matrix.allowed_users", "[]", "More people who may talk to the bot."),
    ("matrix.encryption", "required", "preferred: unencrypted rooms too; off: only those."),
    ("matrix.mention_in_groups", "true", "In groups, answer only when mentioned or replied to."),
    ("matrix.streaming", "true", "Show answers while they are written."),
    (f"{BACKEND}.base_url", '"http://127.0.0.1:8080/v1"', "EDIT: Address of the model server."),
    (f"{BACKEND}.model", "my-model", "EDIT: Name of the model there."),
    (f"{BACKEND}.api_key", "null", "Key, if it needs one; {env: NAME} or {file: PATH}."),
    (f"{BACKEND}.context_tokens", "32768", "Size of the model's context window."),
    (f"{BACKEND}.size", "full", "small: fewer instructions and tools, for small models."),
    (f"{BACKEND}.calls_as_text", "", "This model writes its tool calls as text."),
    ("llm.budget.usd_per_day", "null", "Daily limit in USD; needs the backend's price."),
    ("llm.budget.tokens_per_day", "null", "Daily limit in tokens."),
    ("memory.backend", "flat_file", "How memories are found; see docs/memory.md."),
    ("seed.language", "en", "Language of the greeting."),
    ("dreaming.enabled", "true", "Tidy memories every night."),
    ("dreaming.hour", "1", "Hour when that starts."),
    ("tools.files.roots", "[]", "Folders the assistant may read and write."),
    ("web.enabled", "false", "Serve the web pages on this machine."),
    ("log.level", "info", "How much to log: debug, info, warning or error."),
)
"""Keys with their defaults in YAML and a comment. A key without a default is written only if it is chosen."""


def starter_config(chosen: Mapping[str, str], backend: str) -> str:
    """Return a new config.yaml with the `chosen` values, which are YAML, by their keys in `LINES`."""
    return HEAD + "\n".join(_lines(chosen, backend)) + "\n"


def _lines(chosen: Mapping[str, str], backend: str) -> Iterator[str]:
    above: list[str] = []
    for key, default, comment in LINES:
        value = chosen.get(key, default)
        if not value or (key == "matrix.password" and TOKEN in chosen):
            continue
        *sections, name = (backend if part == "NAME" else part for part in key.split("."))
        for depth, section in enumerate(sections):
            if above[: depth + 1] != sections[: depth + 1]:
                yield f"{'  ' * depth}{section}:"
        above = sections
        comment = comment.removeprefix(EDIT) if key in chosen else comment
        yield f"{'  ' * len(sections)}{name}: {value}  # {comment}"
