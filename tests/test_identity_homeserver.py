"""Our identity at a homeserver that refuses, forgets, lies or wants more: asked seldom, never a second one."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from nio import AsyncClient, AsyncClientConfig

from tests.tiers import tiered
from tests.world.clock import FakeClock
from tests.world.homeserver import Homeserver, Login
from tests.world.identities import APPROVAL_PAGE, BY_PASSWORD, by_page
from tests.world.keys import numbered
from tests.world.proxy import Action, Answer, Cut, Proxy, Request, pass_after, pass_before
from tests.world.scene import NewName, Scene
from wintermute.config.schema import Secret
from wintermute.matrix.cross_signing import NOT_SERVED, CrossSigning
from wintermute.matrix.keys import Keys, store_before_upload
from wintermute.matrix.people import People
from wintermute.matrix.signing import FILE, NEXT, USAGES, keep_seeds, new_seeds

Json = dict[str, Any]
HOUR = 3600.0
UPLOAD, SIGN, QUERY = "keys/device_signing/upload", "keys/signatures/upload", "keys/query"


@dataclass(frozen=True, slots=True)
class Own:
    """One device of a bot at a real homeserver, its time ours."""

    keys: Keys
    nio: AsyncClient
    clock: FakeClock
    folder: Path

    @property
    def said(self) -> tuple[str, str, bool]:
        """State, text, and whether the device is signed."""
        state = self.keys.identity.state
        return state.state, state.text, state.signed

    async def round(self) -> None:
        """What follows a sync in which there was news of our own keys, as after every upload."""
        self.nio.olm.users_for_key_query.add(self.nio.user_id)
        await self.keys.upkeep()

    def seeds(self) -> Json:
        kept: Json = json.loads((self.folder / FILE).read_text())
        return kept


NewOwn = Callable[..., Any]


@pytest.fixture
async def own(
    homeserver: Homeserver, proxy: Proxy, fresh: NewName, tmp_path: Path
) -> AsyncIterator[NewOwn]:
    """`bot = await own()`; `await own(login)` is the same account in another folder."""
    async with AsyncExitStack() as stack:

        async def opened(login: Login | None = None, *, password: str = "") -> Own:
            login = login or homeserver.user(fresh("bot"))
            folder = tmp_path / login.device_id
            folder.mkdir(mode=0o700)
            config = AsyncClientConfig(pickle_key="a pickle key", store_sync_tokens=False)
            nio = AsyncClient(proxy.url, login.user_id, login.device_id, str(folder), config)
            stack.push_async_callback(nio.close)
            nio.restore_login(login.user_id, login.device_id, login.access_token)
            stack.callback(nio.store.database.close)
            store_before_upload(nio.olm)
            clock = FakeClock()
            secret = Secret(password) if password else None
            identity = CrossSigning(nio, folder, login.user_id, secret, clock)
            keys = Keys(nio, numbered, clock, People(), identity, refuse_unsigned=True)
            return Own(keys, nio, clock, folder)

        yield opened


def answering(part: str, answer: Action) -> Callable[[Request], Action]:
    """A `before` that answers one kind of request so."""
    return lambda request: answer if part in request.path else None


def changed(bot: Own, change: Callable[[Json, str, str], None]) -> Callable[..., Action]:
    """An `after` that changes what is served: the answer, our user, our device."""

    def after(request: Request, status: int, body: bytes) -> Action:
        if QUERY not in request.path:
            return None
        served = json.loads(body)
        change(served, bot.nio.user_id, bot.nio.device_id)
        return Answer(status, served)

    return after


def uploads(proxy: Proxy) -> list[str]:
    """The public master key of each identity that was uploaded."""
    return [key_of(request.json) for request in proxy.seen("POST", UPLOAD)]


def key_of(body: Json) -> str:
    [key] = body["master_key"]["keys"].values()
    return str(key)


def no_identity_of(served: Json, user: str, device: str) -> None:
    for usage in ("master", "self_signing", "user_signing"):
        served.get(f"{usage}_keys", {}).pop(user, None)
    del device


REFUSALS: dict[str, tuple[Action, str]] = {
    "unknown": (Answer(404, {"errcode": "M_UNRECOGNIZED"}), "404"),
    "no-json": (Answer(200, b"<html>"), "answered 200"),
    "error": (Answer(500, {"errcode": "M_UNKNOWN"}), "500"),
    "slow-down": (Answer(429, {"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 9000}), "slow"),
    "cut": (Cut(), "homeserver"),
    "forbidden": (Answer(403, {"errcode": "M_FORBIDDEN", "error": "no"}), "M_FORBIDDEN: no"),
    "unauthorized": (Answer(401, {"errcode": "M_FORBIDDEN", "error": "no"}), "M_FORBIDDEN"),
    "odd-code": (Answer(400, {"errcode": ["x"], "error": {"a": 1}}), "400"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", tiered({name: name for name in REFUSALS}, ["unknown", "cut", "odd-code"])
)
async def test_a_refused_identity_is_offered_again_and_stays_the_same(
    case: str, own: NewOwn, proxy: Proxy
) -> None:
    """X-017, X-051: with news of ourselves in every sync, and nothing else stops."""
    answer, text = REFUSALS[case]
    bot: Own = await own()
    proxy.before = answering(UPLOAD, answer)
    for _ in range(5):
        await bot.round()
    state, said, signed = bot.said
    assert (state in ("warn", "fail"), signed) == (True, False)
    assert text in said
    assert len(uploads(proxy)) == 1
    made = bot.seeds()
    for _ in range(6 * 8):
        bot.clock.advance(HOUR / 6)
        await bot.round()
    assert len(uploads(proxy)) <= 8 + 12  # after 1, 2, 4 ... seconds at first
    proxy.before = pass_before
    bot.clock.advance(HOUR)
    await bot.round()
    assert bot.said[::2] == ("ok", True)
    assert set(uploads(proxy)) == {made["master"]["public"]}
    assert bot.seeds() == made


def without_signature(kind: str, name: str) -> Callable[[Json, str, str], None]:
    def change(served: Json, user: str, device: str) -> None:
        found = served.get(kind, {}).get(user)
        if found:
            by_user = (found[device] if kind == "device_keys" else found)["signatures"][user]
            for key in [key for key in by_user if key != f"ed25519:{device}"]:
                del by_user[key]

    del name
    return change


def without(kind: str) -> Callable[[Json, str, str], None]:
    def change(served: Json, user: str, device: str) -> None:
        served.get(kind, {}).pop(user, None)
        del device

    return change


NOT_KEPT = {
    "nothing": no_identity_of,
    "no-master": without("master_keys"),
    "half": without("self_signing_keys"),
    "no-user-signing": without("user_signing_keys"),
    "unsigned-self-signing": without_signature("self_signing_keys", "master"),
    "unsigned-device": without_signature("device_keys", "self_signing"),
}


@pytest.mark.parametrize(
    "case", tiered({name: name for name in NOT_KEPT}, ["half", "unsigned-device"])
)
async def test_a_homeserver_that_never_keeps_it_is_asked_once_an_hour(
    case: str, own: NewOwn, proxy: Proxy
) -> None:
    """X-017: though each upload is news of us, which it tells us with the next sync."""
    bot: Own = await own()
    proxy.after = changed(bot, NOT_KEPT[case])
    for _ in range(5):
        await bot.round()
    assert bot.said[::2] == ("fail", False)
    assert "does not keep it" in bot.said[1]
    for _ in range(4 * 6):
        bot.clock.advance(HOUR / 6)
        await bot.round()
    tried = [*proxy.seen("POST", UPLOAD), *proxy.seen("POST", SIGN)]
    assert len(tried) <= 2 * 5
    assert set(uploads(proxy)) == {bot.seeds()["master"]["public"]}
    proxy.after = pass_after
    bot.clock.advance(HOUR)
    await bot.round()
    assert bot.said[::2] == ("ok", True)


async def test_what_was_forgotten_is_uploaded_again_with_the_same_seeds(
    own: NewOwn, proxy: Proxy
) -> None:
    """X-017: a day later the homeserver has nothing of us, and says that there is news."""
    bot: Own = await own()
    await bot.round()
    assert bot.said[::2] == ("ok", True)
    bot.clock.advance(24 * HOUR)
    forget = changed(bot, no_identity_of)
    proxy.after = lambda request, status, body: (
        None if len(proxy.seen("POST", UPLOAD)) > 1 else forget(request, status, body)
    )
    await bot.round()
    assert bot.said[::2] == ("ok", True)
    assert uploads(proxy) == [bot.seeds()["master"]["public"]] * 2
    assert len(proxy.seen("POST", SIGN)) == 1  # which it still had


def nothing(served: Json, user: str, device: str) -> None:
    no_identity_of(served, user, device)
    served["device_keys"][user] = {}


async def test_all_of_us_that_is_gone_is_noticed_within_the_hour_and_offered_again(
    own: NewOwn, proxy: Proxy
) -> None:
    """F-070: nobody tells of it; keys of the device, identity, then its signature."""
    bot: Own = await own()
    await bot.round()
    device = bot.keys.identity.device()["keys"]
    asked = len(proxy.seen("POST", QUERY))
    forget, done = changed(bot, nothing), len(proxy.seen("POST", "keys/upload"))

    def after(request: Request, status: int, body: bytes) -> Action:
        return None if len(proxy.seen("POST", SIGN)) > 1 else forget(request, status, body)

    def unsigned(request: Request, status: int, body: bytes) -> Action:
        """Serve the device without a signature, and nothing else of what was offered again."""
        offered = proxy.seen("POST", "keys/upload")[done:]
        if not offered or QUERY not in request.path or len(proxy.seen("POST", SIGN)) > 1:
            return after(request, status, body)
        served = json.loads(body)
        name = served["device_keys"][bot.nio.user_id][bot.nio.device_id]
        name["signatures"][bot.nio.user_id] = {}
        if len(proxy.seen("POST", UPLOAD)) == 1:
            no_identity_of(served, bot.nio.user_id, "")
        return Answer(status, served)

    proxy.after = unsigned
    await bot.keys.upkeep()
    assert len(proxy.seen("POST", QUERY)) == asked
    bot.clock.advance(HOUR)
    await bot.keys.upkeep()
    [again] = [r for r in proxy.seen("POST", "keys/upload")[done:] if "device_keys" in r.json]
    assert again.json["device_keys"]["keys"] == device
    assert uploads(proxy) == [bot.seeds()["master"]["public"]] * 2
    assert len(proxy.seen("POST", SIGN)) == 2
    assert (bot.said[::2], bot.keys.trouble) == (("ok", True), "")


@pytest.mark.parametrize(("served", "offers"), [("missing", 2), ("other", 0)])
async def test_what_is_not_kept_is_offered_once_an_hour_and_what_is_other_never_replaced(
    served: str, offers: int, own: NewOwn, proxy: Proxy
) -> None:
    """F-070, X-017: the status says which, what does not work because of it, and what to do."""
    bot: Own = await own()
    await bot.round()
    done = len(proxy.requests)
    proxy.after = changed(bot, nothing if served == "missing" else with_key)
    for _ in range(2):
        bot.clock.advance(HOUR)
        for _ in range(3):
            await bot.round()
    tried = [r for r in proxy.requests[done:] if r.path.endswith("keys/upload")]
    assert len([r for r in tried if "device_keys" in r.json]) == offers
    assert not [r for r in proxy.requests[done:] if UPLOAD in r.path]
    assert bot.keys.trouble == NOT_SERVED[served]
    proxy.after = pass_after
    bot.clock.advance(HOUR)
    await bot.keys.upkeep()
    assert (bot.said[::2], bot.keys.trouble) == (("ok", True), "")


@pytest.mark.slow
async def test_status_and_check_name_what_is_served_instead_of_our_keys(scene: Scene) -> None:
    """F-070: also `check`, which has no keys to compare with."""
    daemon = await scene.bot(await scene.person("ann"), via=scene.proxy.url)
    device = str(json.loads((daemon.data / "matrix" / "session.json").read_text())["device_id"])

    def after(request: Request, status: int, body: bytes) -> Action:
        served = json.loads(body) if QUERY in request.path else {}
        if daemon.user_id not in served.get("device_keys", {}):
            return None
        with_key(served, daemon.user_id, device)
        return Answer(status, served)

    scene.proxy.after = after
    await daemon.restart()
    for verb in ("status", "check"):
        _, told = await daemon.command(verb)
        assert NOT_SERVED["other"] in told


@pytest.mark.parametrize(
    "failures", [{"@bot:x": {"D": {"errcode": "M_INVALID_SIGNATURE"}}}, ["no"], "M_NO", 7]
)
async def test_a_signature_that_is_refused_with_a_yes_is_no_signature(
    failures: object, own: NewOwn, proxy: Proxy
) -> None:
    """X-017: `failures` stand in an answer with 200."""
    bot: Own = await own()
    proxy.before = answering(SIGN, Answer(200, {"failures": failures}))
    for _ in range(3):
        await bot.round()
    assert bot.said[::2] == ("fail", False)
    assert "signature of our device" in bot.said[1]
    assert len(proxy.seen("POST", SIGN)) == 1
    proxy.before = pass_before
    bot.clock.advance(HOUR)
    await bot.round()
    assert bot.said[::2] == ("ok", True)


def with_field(served: Json, user: str, device: str) -> None:
    served["device_keys"][user][device]["dehydrated"] = True


def with_algorithm(served: Json, user: str, device: str) -> None:
    served["device_keys"][user][device]["algorithms"] = ["org.example.rot13"]


def with_key(served: Json, user: str, device: str) -> None:
    served["device_keys"][user][device]["keys"][f"ed25519:{device}"] = "A" * 43


def gone(served: Json, user: str, device: str) -> None:
    del served["device_keys"][user][device]


def only_text(served: Json, user: str, device: str) -> None:
    served["device_keys"][user][device] = "a device"


@pytest.mark.parametrize("change", [with_field, with_algorithm, with_key, gone, only_text])
async def test_nothing_is_signed_that_the_homeserver_made_up(
    change: Callable[[Json, str, str], None], own: NewOwn, proxy: Proxy
) -> None:
    """X-017: a device with our name that is not as we know it; nor is an identity made."""
    bot: Own = await own()
    proxy.after = changed(bot, change)
    for _ in range(3):
        await bot.round()
    assert bot.said[::2] == ("warn", False)
    assert "keys of this device" in bot.said[1]
    assert not (bot.folder / FILE).exists()
    proxy.after = pass_after
    bot.clock.advance(61)
    await bot.round()
    assert bot.said[::2] == ("ok", True)
    [signed] = proxy.seen("POST", SIGN)
    device = signed.json[bot.nio.user_id][bot.nio.device_id]
    assert set(device) == {"user_id", "device_id", "keys", "algorithms", "signatures"}
    assert "dehydrated" not in signed.body.decode()


def unreadable(served: Json, user: str, device: str) -> None:
    del device
    if user in served.get("master_keys", {}):
        served["master_keys"][user]["keys"]["ed25519:other"] = "B" * 43


OTHERS: dict[str, Callable[[Json, str, str], None]] = {
    "as-it-is": lambda served, user, device: None,
    "unreadable": unreadable,
    "without-master": without("master_keys"),
}


@pytest.mark.parametrize("case", OTHERS)
async def test_another_identity_is_never_replaced(
    case: str, own: NewOwn, proxy: Proxy, homeserver: Homeserver
) -> None:
    """X-017: whatever of it can be read; though the password would do."""
    first: Own = await own()
    await first.round()
    assert first.said[::2] == ("ok", True)
    before = len(proxy.requests)
    name = first.nio.user_id[1:].partition(":")[0]
    login = homeserver.login(name)
    second: Own = await own(login, password=login.password)
    proxy.after = changed(second, OTHERS[case])
    for _ in range(4):
        await second.round()
        second.clock.advance(2 * HOUR)
    assert second.said[::2] == ("fail", False)
    assert "reset-crypto --identity" in second.said[1]
    assert not [r for r in proxy.requests[before:] if UPLOAD in r.path or SIGN in r.path]
    assert not (second.folder / FILE).exists()


async def test_lost_seeds_are_told_and_taken_back(own: NewOwn, proxy: Proxy) -> None:
    """X-017: nothing is uploaded; a backup of the file mends it."""
    bot: Own = await own()
    await bot.round()
    aside = (bot.folder / FILE).rename(bot.folder / "backup")
    before = len(proxy.requests)
    await bot.round()
    assert bot.said[::2] == ("fail", False)
    assert "restore" in bot.said[1]
    aside.rename(bot.folder / FILE)
    bot.clock.advance(HOUR)
    await bot.round()
    assert bot.said[::2] == ("ok", True)
    assert not [r for r in proxy.requests[before:] if UPLOAD in r.path or SIGN in r.path]


async def test_the_password_is_given_when_it_is_asked_for(own: NewOwn, proxy: Proxy) -> None:
    """X-051: with the session of the question, and to the question alone."""
    bot: Own = await own(password="open sesame")
    proxy.before = lambda request: (
        Answer(401, BY_PASSWORD)
        if UPLOAD in request.path and "password" not in request.json.get("auth", {})
        else None
    )
    await bot.round()
    assert bot.said[::2] == ("ok", True)
    first, second = [request.json for request in proxy.seen("POST", UPLOAD)]
    assert "auth" not in first
    assert second == first | {
        "auth": {
            "type": "m.login.password",
            "identifier": {"type": "m.id.user", "user": bot.nio.user_id},
            "password": "open sesame",
            "session": "s1",
        }
    }


@pytest.mark.parametrize(("password", "advice"), [("", "in place of"), ("wrong", "refuses")])
async def test_what_a_password_would_do_is_told(
    password: str, advice: str, own: NewOwn, proxy: Proxy
) -> None:
    """X-051: and a wrong one is not tried all day."""
    bot: Own = await own(password=password)
    refused = BY_PASSWORD | {"errcode": "M_FORBIDDEN", "error": "Invalid password"}
    proxy.before = answering(UPLOAD, Answer(401, refused))
    for _ in range(4):
        await bot.round()
    assert bot.said[::2] == ("fail", False)
    assert "matrix.password" in bot.said[1]
    assert advice in bot.said[1]
    assert len(uploads(proxy)) == (2 if password else 1)


@pytest.mark.parametrize("stage", ["m.oauth", "org.matrix.cross_signing_reset"])
async def test_after_the_approval_the_same_session_goes_on(
    stage: str, own: NewOwn, proxy: Proxy
) -> None:
    """X-051: at most once a minute; the page is told; the same identity all the time."""
    bot: Own = await own()
    proxy.before = answering(UPLOAD, Answer(401, by_page(stage)))
    for _ in range(5):
        await bot.round()
    assert bot.said[::2] == ("fail", False)
    assert APPROVAL_PAGE in bot.said[1]
    assert len(uploads(proxy)) == 1
    bot.clock.advance(61)
    await bot.round()
    proxy.before = answering(UPLOAD, Answer(401, by_page(stage, session="s2")))
    bot.clock.advance(61)
    await bot.round()
    proxy.before = pass_before
    bot.clock.advance(61)
    await bot.round()
    assert bot.said[::2] == ("ok", True)
    tried = [request.json.get("auth") for request in proxy.seen("POST", UPLOAD)]
    assert tried == [None, {"session": "s1"}, {"session": "s1"}, {"session": "s2"}]
    assert set(uploads(proxy)) == {bot.seeds()["master"]["public"]}


@pytest.mark.parametrize("usage", USAGES)
async def test_seeds_that_do_not_make_their_keys_are_not_used(
    usage: str, own: NewOwn, proxy: Proxy
) -> None:
    """X-017: the file was spoilt by hand, or put together of two."""
    bot: Own = await own()
    mixed = asdict(new_seeds(bot.nio.user_id))
    mixed[usage] |= {"public": new_seeds("").master.public}
    (bot.folder / FILE).write_text(json.dumps(mixed))
    for _ in range(3):
        await bot.round()
        bot.clock.advance(HOUR)
    assert bot.said[::2] == ("fail", False)
    assert str(bot.folder / FILE) in bot.said[1]
    assert not uploads(proxy)
    assert bot.seeds() == mixed


async def test_the_next_identity_is_ours_once_it_was_accepted_and_not_before(
    own: NewOwn, proxy: Proxy, homeserver: Homeserver, fresh: NewName
) -> None:
    """X-017: a replacement was killed before its seeds took their place."""
    login = homeserver.user(fresh("bot"))
    bot: Own = await own(login, password=login.password)
    await bot.round()
    old = bot.seeds()
    coming = new_seeds(bot.nio.user_id)
    keep_seeds(bot.folder, coming, NEXT)
    await bot.round()
    assert (bot.said[::2], bot.seeds()) == (("ok", True), old)
    proxy.after = changed(bot, no_identity_of)
    await bot.round()  # forgotten, and not kept: that is no reason to take the next one
    assert bot.seeds() == old
    assert set(uploads(proxy)) == {old["master"]["public"]}
    proxy.after = pass_after
    await bot.keys.identity.upload(coming)
    bot.clock.advance(HOUR)
    await bot.round()
    assert bot.said[::2] == ("ok", True)
    assert bot.seeds() == asdict(coming)
    assert (bot.folder / NEXT).exists() is False
    [aside] = bot.folder.glob(f"{FILE}.until-*")
    assert json.loads(aside.read_text()) == old
