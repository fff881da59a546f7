"""The state of our identity, in words for a person, also where the homeserver wants more than our login."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.world.clock import FakeClock
from tests.world.identities import (
    APPROVAL_PAGE,
    BY_PASSWORD,
    OUR_SEEDS,
    answer_for,
    by_page,
    identity_of,
    settling,
)
from tests.world.keys import BOT
from tests.world.malformed import WRONG, misshapen
from tests.world.proxy import Action, Answer, Proxy, Request
from wintermute.errors import ApprovalNeeded, WintermuteError
from wintermute.matrix.cross_signing import CrossSigning, approval_text
from wintermute.matrix.http import refuse
from wintermute.matrix.signing import FILE, NEXT, keep_seeds, new_seeds

Json = dict[str, Any]
GONE = Answer(400, {"errcode": "M_UNKNOWN", "error": "Unknown session ID: s1"})
AWAY = Answer(502, b"<html>")


@dataclass(slots=True)
class Server:
    """A homeserver that has our device, and of an identity what it was given.

    `wants`: what it says to an upload, by the session that comes with it.
    """

    identity: CrossSigning
    clock: FakeClock
    proxy: Proxy
    wants: dict[str | None, Action] = field(default_factory=dict)
    kept: Json = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.proxy.before = self._before

    def _before(self, request: Request) -> Action:
        if "device_signing" not in request.path:
            return Answer(200)
        auth = request.json.get("auth")
        said = self.wants.get(auth and auth["session"])
        if said is None and self.identity.seeds:
            self.kept = answer_for(self.identity.device(), self.identity.seeds)
        return said or Answer(200)

    @property
    def sessions(self) -> list[str | None]:
        """What came with each upload."""
        auths = [r.json.get("auth") for r in self.proxy.seen("POST", "device_signing")]
        return [auth and auth["session"] for auth in auths]

    async def ask(self) -> Json:
        device = self.identity.device()
        return {"device_keys": {BOT: {device["device_id"]: device}}} | self.kept

    async def round(self, seconds: float = 0.0) -> tuple[str, str]:
        """Some time later: what kind of trouble there is, and what is said."""
        self.clock.advance(seconds)
        await self.identity.settle(await self.ask(), self.ask)
        return self.identity.state.kind, self.identity.state.text


async def test_a_session_that_the_homeserver_forgot_is_not_used_again(tmp_path: Path) -> None:
    """X-051: it was restarted, and asks for nothing more than our login by now."""
    keep_seeds(tmp_path, OUR_SEEDS)
    async with settling(tmp_path) as parts:
        server = Server(*parts, wants={None: Answer(401, by_page()), "s1": AWAY})
        assert (await server.round())[0] == "page"
        assert (await server.round(61))[0] == "unavailable"  # which says nothing of the session
        server.wants = {"s1": GONE}
        assert (await server.round(61))[0] == ""
        assert server.identity.state.state == "ok"
    assert server.sessions == [None, "s1", "s1", None]


async def test_a_forgotten_session_does_not_hide_the_page(tmp_path: Path) -> None:
    """X-051: the next session goes on, and what it is refused for is told."""
    keep_seeds(tmp_path, OUR_SEEDS)
    async with settling(tmp_path) as parts:
        server = Server(*parts, wants={None: Answer(401, by_page())})
        await server.round()
        server.wants = {"s1": GONE, None: Answer(401, by_page(session="s2"))}
        server.wants["s2"] = server.wants[None]
        kind, text = await server.round(61)
        assert (kind, APPROVAL_PAGE in text) == ("page", True)
        kind, text = await server.round(61)
        server.wants["s2"] = server.wants[None] = Answer(403, {"errcode": "M_FORBIDDEN"})
        kind, text = await server.round(61)
        assert (kind, "M_FORBIDDEN" in text, "admin" in text) == ("refused", True, True)
        await server.round(3601)
    assert server.sessions == [None, "s1", None, "s2", "s2", None, None]


KINDS: dict[str, tuple[str, list[Action]]] = {
    "page": (
        "page",
        [Answer(401, by_page(url=f"https://e.org/{n}", session=f"{n}")) for n in range(3)],
    ),
    "password": ("password", [Answer(401, BY_PASSWORD | {"error": f"{n}"}) for n in range(2)]),
    "stages": ("stages", [Answer(401, {"flows": [{"stages": [f"a.{n}"]}]}) for n in range(3)]),
    "refused": ("refused", [Answer(403, {"errcode": f"M_{n}", "error": "x"}) for n in range(3)]),
    "no": ("unavailable", [AWAY, Answer(500), Answer(404, {"errcode": "M_UNRECOGNIZED"})]),
}


@pytest.mark.parametrize("case", KINDS)
async def test_trouble_has_one_word_whatever_the_homeserver_writes(
    case: str, tmp_path: Path
) -> None:
    """X-051: so that one message to the owner stays one; and each text says what to do."""
    kind, answers = KINDS[case]
    async with settling(tmp_path) as parts:
        server = Server(*parts)
        texts = set()
        for answer in answers:
            parts[2].before = lambda request, said=answer: said  # type: ignore[misc]  # a default
            found, text = await server.round(7200)
            assert found == kind
            assert " -> " in text
            texts.add(text)
    assert len(texts) > 1 or case == "password"


async def test_what_is_wrong_here_or_there_has_a_word_too(tmp_path: Path) -> None:
    """X-017: each is told apart, and an identity in order has none."""
    async with settling(tmp_path) as parts:
        server = Server(*parts)
        assert server.identity.state.kind == ""
        assert (await server.round())[0] == ""
        assert server.identity.state.state == "ok"
        (tmp_path / FILE).rename(tmp_path / "aside")
        kind, text = await server.round()
        assert (kind, "seeds are not here" in text, FILE in text) == ("foreign", True, True)
        keep_seeds(tmp_path, new_seeds(BOT))
        kind, text = await server.round(3601)
        assert (kind, "than the one here" in text, FILE in text) == ("foreign", True, True)
        (tmp_path / FILE).write_text("half of")
        assert (await server.round(3601))[0] == "unusable"
        (tmp_path / FILE).unlink()
        (tmp_path / "aside").rename(tmp_path / FILE)
        server.wants = {None: Answer(200, {"kept": False})}
        server.kept = {}
        assert (await server.round(3601))[0] == "not kept"


async def test_a_device_the_homeserver_does_not_serve_is_waited_for(tmp_path: Path) -> None:
    """X-017."""
    async with settling(tmp_path) as (identity, _, _proxy):

        async def ask() -> Json:
            return {"device_keys": {BOT: {}}}

        await identity.settle(await ask(), ask)
        assert identity.state.kind == "waits"


async def test_whether_the_identity_outlives_a_lost_key_store_is_known_without_the_homeserver(
    tmp_path: Path,
) -> None:
    """X-016: what the rooms are told must not hang on whether it answers just then."""
    async with settling(tmp_path) as parts:
        server = Server(*parts)
        assert not server.identity.keeps_identity
        await server.round()
        assert server.identity.state.signed
        assert not server.identity.keeps_identity  # nobody can have verified it
    async with settling(tmp_path) as parts:
        server = Server(*parts, wants={None: AWAY})
        assert server.identity.keeps_identity
        assert (await server.round())[0] == "unavailable"
        assert server.identity.keeps_identity
        server.kept = identity_of(OUR_SEEDS)
        assert (await server.round(61))[0] == "foreign"
        assert not server.identity.keeps_identity
    (tmp_path / FILE).write_text("half of")
    async with settling(tmp_path) as (identity, _, _proxy):
        assert not identity.keeps_identity


async def test_the_seeds_are_known_as_secrets_before_they_are_made(tmp_path: Path) -> None:
    """L-050: what hides secrets is built at the start, also at the first one."""
    async with settling(tmp_path) as parts:
        secrets = parts[0].secrets
        assert not (tmp_path / FILE).exists()
        await Server(*parts).round()
        made = parts[0].seeds
    assert made is not None
    assert {pair.seed for pair in made.pairs} == set(secrets)
    keep_seeds(tmp_path, OUR_SEEDS, NEXT)
    async with settling(tmp_path) as (identity, _, _proxy):
        assert {pair.seed for pair in (*made.pairs, *OUR_SEEDS.pairs)} < set(identity.secrets)


def approval_shown(answer: object, *, has_password: bool = False) -> str:
    """What somebody reads after an answer with 401."""
    try:
        refuse(401, json.loads(json.dumps(answer)))
    except ApprovalNeeded as error:
        return approval_text(error, has_password=has_password)
    except WintermuteError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "data:text/html,x",
        "//evil.example",
        "HTTPS://[",
        "https://e.org/" + "x" * 10_000,
        "https://e.org/ run this",
        "https://e.org/\n2026 INFO all is well",
        "https://e.org/\x1b[2J",
        "https://e.org/`@ann:test`",
        "https://e.org/<b>",
        "https://ex\u202egro.org",
        *WRONG,
    ],
    ids=lambda url: repr(url)[:20],
)
def test_a_page_that_is_none_is_never_shown(url: object) -> None:
    """X-051."""
    shown = approval_shown(by_page(url=url if url is not WRONG[0] else None))
    assert "with a client that can do that" in shown
    assert "://" not in shown
    assert "javascript" not in shown
    assert len(shown) < 500
    assert shown.isprintable()


def test_any_answer_with_401_is_told_in_one_line() -> None:
    """X-051, X-022: each field missing or of another kind, at any depth."""
    answer = by_page() | {"errcode": "M_FORBIDDEN", "error": "no"}
    answer["flows"] += [{"stages": ["m.login.password"]}, {"stages": ["a", "b"]}]
    cases = [*misshapen(answer), *misshapen(BY_PASSWORD)]
    cases += [answer | {"flows": [flow]} for flow in WRONG[1:]]
    cases += [answer | {"flows": [{"stages": [stage]}]} for stage in WRONG[1:]]
    assert len(cases) > 80
    for case in cases:
        for has_password in (True, False):
            assert len(approval_shown(case, has_password=has_password)) < 1500


@pytest.mark.parametrize(
    ("flows", "part"),
    [
        ([["m.login.recaptcha", "m.login.dummy"]], "m.login.recaptcha+m.login.dummy"),
        ([["m.login.sso"], ["org.example.x"]], "m.login.sso or org.example.x"),
        ([["\x1b[2J\nINFO all is well"]], ": ? ->"),
        ([["m.login.password", 7]], "m.login.password+7"),
        ([["m.login.password", "m.login.dummy"]], "m.login.password+m.login.dummy"),
        ([["x" * 90] * 50], "x" * 90),
        ([], "nothing that we know"),
    ],
)
def test_stages_that_we_cannot_do_are_named(flows: list[list[object]], part: str) -> None:
    """X-051: a password is offered only where it alone will do."""
    shown = approval_shown({"flows": [{"stages": flow} for flow in flows], "session": "s"})
    assert part in shown
    assert "matrix.password" not in shown
    assert len(shown) < 500
    assert shown.isprintable()
