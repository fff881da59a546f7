"""The questions of `wintermute init`: a table, each with a function that tests the answer."""

import asyncio
import json
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from wintermute.cli.options import visible
from wintermute.config.schema import URL, Backend, Matrix, Secret
from wintermute.config.secrets import Redaction
from wintermute.config.starter import BACKEND, TOKEN
from wintermute.errors import (
    ConfigurationError,
    KeyRefused,
    ModelError,
    ModelRefused,
    WintermuteError,
)
from wintermute.llm.context_windows import is_private, server_window
from wintermute.llm.probes import probe
from wintermute.llm.providers import PROVIDERS, Provider, list_models, matches
from wintermute.matrix.discovery import find
from wintermute.matrix.kept_login import Session
from wintermute.matrix.login import end_login, exists, logged_in, takes_passwords
from wintermute.text import counted

LONGEST, SHOWN, FEW_TOKENS = 1000, 12, 8192
TRIAL_SECONDS, LOCAL_SECONDS = 120.0, 1.0
NAME, SERVER = r"@[^@:\s]+", r":[^@\s]+"
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
KEYS = {name: f"matrix.{name}" for name in ("homeserver", "user_id", "password", "owner")} | {
    name: f"{BACKEND}.{name}" for name in ("base_url", "api_key", "model")
}
SECRETS = ("password", "api_key")
NEEDED = f"an answer is needed here: one line, at most {LONGEST} characters; Ctrl-C leaves"
NO_USER = "is no Matrix id: write one such as @{}:example.org"
NO_ADDRESS = "is no address: write one such as https://example.org"
SHAPES = dict.fromkeys(("homeserver", "base_url"), (URL, NO_ADDRESS)) | {
    key: (NAME + SERVER, NO_USER.format(one)) for key, one in (("user_id", "bot"), ("owner", "you"))
}
NO_PASSWORD = """
This homeserver takes no passwords from programs. Use a personal access token of the bot's account:
its operator can make one. Do not copy a token out of a client such as Element: it shares that
client's device and ends within hours."""


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C during a block; it takes effect at its end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Interview:
    """The answers so far: YAML values by key, secrets by the name of their file, the login."""

    def __init__(self, given: Mapping[str, str]) -> None:
        """`given` are answers from the command line, by the names of their questions."""
        self.chosen: dict[str, str] = {}
        self.files: dict[str, str] = {}
        self.backend = "local"
        self.session: Session | None = None
        self._given = dict(given)
        self._offered = {"user_id": "wintermute"}
        self._matrix = Matrix(homeserver="", user_id="", owner="")
        self._by_password = True
        self._provider, self._needs_key = Provider(""), False
        self._address, self._key, self._models = "", "", tuple[str, ...]()
        self._doubted = ""
        self._redact = Redaction(())

    def take(self) -> None:
        """Take the given answers without a test. Raises: ConfigurationError."""
        given = self._given
        if known := PROVIDERS.get(given.get("base_url", "")):
            self.backend, given["base_url"] = given["base_url"], known.base_url
        if "://" not in given.get("homeserver", "://"):
            given["homeserver"] = f"https://{given['homeserver']}"
        for name, answer in given.items():
            shape, problem = SHAPES.get(name, ("(?s:.*)", ""))
            if not re.fullmatch(shape, answer):
                raise ConfigurationError(f"{answer!r} {problem}")
            if name in SECRETS:
                self._hide(KEYS[name], answer)
            else:
                self._keep(KEYS[name], answer)

    def ask_all(self) -> None:
        """Ask all questions and test each answer. Raises: click.Abort."""
        for each in ENDINGS:
            signal.signal(each, signal.default_int_handler)
        at = 0
        while at < len(QUESTIONS):
            at += self._ask(*QUESTIONS[at])

    def undo(self) -> None:
        """Log out the device that was made here."""
        if self.session is not None and self._by_password:
            asyncio.run(end_login(self._matrix, self.session))
            click.echo("The bot's new device was logged out again.", err=True)

    def _ask(self, name: str, text: str, attempt: Callable[..., str], back: int) -> int:
        """Ask one question. Return by how many questions to go on or back."""
        is_secret, usual = name in SECRETS, self._offered.get(name, "")
        if name == "api_key" and not self._needs_key:
            return 1
        if name not in self._given:
            secret = "Password" if self._by_password else "Access token"
            text = text.format(secret=secret, user=self._matrix.user_id)
        try:
            answer = self._given.pop(name, None) or click.prompt(
                text, default=usual, show_default=bool(usual), hide_input=is_secret
            )
            if not answer or len(answer) > LONGEST or not answer.isprintable():
                raise ConfigurationError(NEEDED)
            if is_secret and answer not in self._matrix.user_id:  # a user name is no secret
                self._redact.hide(answer)
            said, step = attempt(self, answer if is_secret else answer.strip()), 1
        except (WintermuteError, UnicodeDecodeError) as error:
            said, step = str(error), -back
        if said:
            click.echo(f"  {visible(self._redact(said))}")
        return step

    def _keep(self, key: str, value: object) -> None:
        self.chosen[key] = json.dumps(value, ensure_ascii=False)  # JSON is YAML

    def _hide(self, key: str, secret: str) -> None:
        file = key.rpartition(".")[2].replace("_", "-")
        self.files[file] = secret
        self.chosen[key] = f"{{file: {file}}}"

    def _doubt(self, answer: str, problem: str) -> None:
        """Refuse an answer that may be right; given a second time it is accepted."""
        if answer != self._doubted:
            self._doubted = answer
            raise ConfigurationError(f"{problem} (give the same answer again to use it anyway)")

    def homeserver(self, answer: str) -> str:
        """Find the homeserver, and whether it accepts passwords."""
        address = asyncio.run(find(replace(self._matrix, homeserver=answer)))
        self._matrix = replace(self._matrix, homeserver=address)
        self._by_password = asyncio.run(takes_passwords(self._matrix))
        self._keep(KEYS["homeserver"], address)
        return f"{address} answers.{'' if self._by_password else NO_PASSWORD}"

    def account(self, answer: str) -> str:
        """Accept any Matrix id: the login tests it."""
        self._offered["user_id"] = user = self._as_matrix_id("user_id", answer)
        self._matrix = replace(self._matrix, user_id=user if ":" in user else user[1:])
        return ""

    def _as_matrix_id(self, question: str, answer: str, server: str = "") -> str:
        """Return a Matrix id as typed; one with capital letters is doubted, and offered in small ones."""
        user = f"@{answer.removeprefix('@')}"
        if not re.fullmatch(f"{NAME}({SERVER})?", user):
            raise ConfigurationError(f"{answer!r} {SHAPES[question][1]}")
        user += server if ":" not in user else ""
        if user != user.lower():
            self._offered[question] = user.lower()
            self._doubt(user, f"Matrix ids have small letters, such as {user.lower()}")
        return user

    def secret(self, answer: str) -> str:
        """Log in; `run` will use this device."""
        key, matrix = TOKEN, replace(self._matrix, access_token=Secret(answer))
        if self._by_password:
            key, matrix = KEYS["password"], replace(self._matrix, password=Secret(answer))
        with TemporaryDirectory(prefix="wintermute-") as folder, uninterrupted():
            self.session = asyncio.run(logged_in(matrix, Path(folder)))
        self._matrix = replace(matrix, user_id=self.session.user_id)
        self._keep(KEYS["user_id"], self.session.user_id)
        self._hide(key, answer)
        return f"Logged in as {self.session.user_id}, device {self.session.device_id}."

    def owner(self, answer: str) -> str:
        """Check that this account exists, if the homeserver tells."""
        assert self.session is not None
        server = self.session.user_id.partition(":")[2]
        user = self._as_matrix_id("owner", answer, f":{server}")
        if user == self.session.user_id:
            raise ConfigurationError("that is the bot: write your own account")
        known = asyncio.run(exists(self._matrix, self.session.access_token, user))
        if not known:
            home = user.partition(":")[2]
            problem = f"I cannot ask {home} about" if known is None else f"{home} has no account"
            self._doubt(user, f"{problem} {user}: check the spelling")
        self._keep(KEYS["owner"], user)
        if "base_url" not in self._given:
            self._offered["base_url"] = asyncio.run(running())
        return f"{user} exists." if known else f"{user} was not checked."

    def provider(self, answer: str) -> str:
        """Ask the provider for its models, unless that needs a key."""
        known = PROVIDERS.get(answer.lower())
        address = answer if "://" in answer else f"http://{answer}"
        if address != answer and not asyncio.run(is_private(Backend(base_url=address, model=""))):
            address = f"https://{answer}"  # a key must not be sent without TLS
        self.backend = answer.lower() if known else "local"
        self._provider = known or Provider(address)
        if not re.fullmatch(URL, self._provider.base_url):
            raise ConfigurationError("write one of these names, or an address")
        self._key, self._needs_key = "", bool(self._provider.keys)
        if self._needs_key:
            return f"It gives keys at {self._provider.keys}"
        try:
            return self._listed("")
        except ModelRefused as refused:
            self._needs_key = True
            return f"{refused}."
        except ModelError as error:
            how = f". Start it: {self._provider.start}" if self._provider.start else ""
            raise ConfigurationError(f"{error}{how}") from error

    def key(self, answer: str) -> str:
        """Ask for the models with this key."""
        said, self._needs_key = self._listed(answer), False
        self._hide(KEYS["api_key"], answer)
        return said

    def _listed(self, key: str) -> str:
        address, models = asyncio.run(list_models(self._provider.base_url, key))
        if not models:
            raise ConfigurationError(f"{address} has no models: load one there first")
        self._address, self._key, self._models = address, key, models
        talking = [each for each in models if "embed" not in each]
        known = (each for part in self._provider.models for each in talking if part in each)
        self._offered["model"] = next(known, talking[0] if len(talking) == 1 else "")
        shown = ", ".join(models[:SHOWN]) + (", …" if models[SHOWN:] else "")
        return f"{address} has {counted(len(models), 'model')}: {shown}"

    def model(self, answer: str) -> str:
        """Let the model call a tool. Some servers list models without a key, and need it only now."""
        found = matches(answer, self._models)
        if len(found) != 1:
            those = ", ".join((found or self._models)[:SHOWN])
            count = f"{len(found)} models" if found else "none of the models there"
            raise ConfigurationError(f"{answer} matches {count}: choose one of {those}")
        key = Secret(self._key) if self._key else None
        backend = Backend(base_url=self._address, model=found[0], api_key=key)
        try:
            probed = asyncio.run(probe(self.backend, backend, TRIAL_SECONDS))
        except KeyRefused as error:
            self._needs_key = True
            if not self._key:
                raise ConfigurationError(f"{self._address} wants a key") from error
            self._doubt(self._key, f"{self._address} refuses this key")
        except WintermuteError as error:
            self._doubt(found[0], str(error))
        else:
            if probed.spells is None:
                self._doubt(found[0], f"{probed.report}: choose a model that can call tools")
            if probed.spells:
                self._keep(f"{BACKEND}.calls_as_text", value=True)
        self._keep(KEYS["base_url"], self._address)
        self._keep(KEYS["model"], found[0])
        window = asyncio.run(server_window(backend))
        if window is None or window.at_most:
            return f"Using {found[0]}."
        self._keep(f"{BACKEND}.context_tokens", window.tokens)
        few = " That is little: give it 16384 or more." if window.tokens < FEW_TOKENS else ""
        return f"Using {found[0]} with a context window of {window.tokens} tokens.{few}"


async def running() -> str:
    """Return a provider that runs on this machine; "" without one."""
    for name, each in PROVIDERS.items():
        if each.start:
            with suppress(ModelError, TimeoutError):
                async with asyncio.timeout(LOCAL_SECONDS):
                    await list_models(each.base_url)
                return name
    return ""


QUESTIONS: tuple[tuple[str, str, Callable[[Interview, str], str], int], ...] = (
    ("homeserver", "Homeserver, such as example.org", Interview.homeserver, 0),
    ("user_id", "Account of the bot", Interview.account, 0),
    ("password", "{secret} of {user} (it does not show)", Interview.secret, 1),
    ("owner", "Your own account, such as @you:example.org", Interview.owner, 0),
    ("base_url", f"Model server: {', '.join(PROVIDERS)}, or an address", Interview.provider, 0),
    ("api_key", "Its API key (it does not show)", Interview.key, 1),
    ("model", "Model", Interview.model, 1),
)
"""For each question its name, text, test, and how many questions a refused answer goes back."""
