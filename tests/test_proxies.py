"""A proxy on the way to the homeserver and to the models: what config.yaml says, never the environment."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress

from tests.world.asking import HELLO, backend
from tests.world.chats import SECRET, hears, knows, scope_of, slip_in
from tests.world.clock import until
from tests.world.homeserver import Homeserver
from tests.world.model import ModelServer, Slow, Text
from tests.world.scene import Scene
from wintermute.config.schema import Secret
from wintermute.config.secrets import Redaction, secret_values
from wintermute.ids import new_id
from wintermute.llm.backend import Endpoint
from wintermute.llm.failures import Failed
from wintermute.matrix.outbox import KEPT_BACK

LOGIN = "walter:0canary0:/ @9"
NAMES = ("homeserver.invalid", "model.invalid")


class WebProxy:
    """Tunnels by CONNECT, passes plain requests on, wants a login; alone knows where names lead."""

    def __init__(self, *behind: str) -> None:
        self.known = {name: url.split("/")[2] for name, url in zip(NAMES, behind, strict=False)}
        self.login = LOGIN
        self.asked: list[str] = []
        self.opens = asyncio.Event()
        self.opens.set()
        self.idle = set[asyncio.StreamWriter]()

    def hold(self) -> None:
        """Let no new tunnel through; the old ones end, but for those that wait for a sync."""
        self.opens.clear()
        for writer in self.idle:
            writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *rest = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        method, target, version = first.split()
        host = (target if method == "CONNECT" else target.split("/")[2]).partition(":")[0]
        self.asked.append(f"{method} {host}")
        key = "proxy-authorization: basic " + b64encode(self.login.encode()).decode().lower()
        may = key in map(str.lower, rest)
        if not may or host not in self.known:
            refused = "502 Bad Gateway" if may else "407 Proxy Authentication Required"
            writer.write(f"HTTP/1.1 {refused}\r\nContent-Length: 0\r\n\r\n".encode())
            writer.close()
            return
        there, out = await asyncio.open_connection(*self.known[host].split(":"))
        if method == "CONNECT":
            await self.opens.wait()
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            head = [f"{method} /{target.split('/', 3)[3]} {version}", *rest, "", ""]
            out.write("\r\n".join(head).encode())
        await asyncio.gather(self._pass(reader, out, writer), self._pass(there, writer))

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        asks: asyncio.StreamWriter | None = None,
    ) -> None:
        """Copy one direction; `asks` are whose requests these are."""
        with suppress(OSError):  # the other side has gone
            while piece := await reader.read(65536):
                if asks:
                    (self.idle.discard if b"/sync" in piece[:50] else self.idle.add)(asks)
                writer.write(piece)
        writer.close()


@asynccontextmanager
async def web_proxy(*behind: str) -> AsyncIterator[tuple[WebProxy, str]]:
    proxy = WebProxy(*behind)
    async with await asyncio.start_server(proxy.serve, "127.0.0.1", 0) as server:
        yield proxy, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_everything_goes_through_the_proxy_that_the_configuration_names(
    scene: Scene, model: ModelServer, homeserver: Homeserver
) -> None:
    """F-053, L-089: of names that only the proxy can look up; its login is shown nowhere."""
    ann = await scene.person("ann")
    async with web_proxy(homeserver.url, model.url) as (proxy, address):
        through = {"proxy": address, "proxy_login": {"file": "proxy"}}
        scripted = {"base_url": "http://model.invalid/v1", "model": "scripted"}
        llm = {"backends": {"scripted": scripted | through}, "record": True}
        via = "http://homeserver.invalid"
        daemon = await scene.bot(ann, via=via, start=False, llm=llm, matrix=through)
        (daemon.config.parent / "proxy").write_text(LOGIN)
        await daemon.start()
        chat = await scene.room(ann, daemon, encrypted=True)
        await ann.send(chat, "my login is walter and 0canary0:/ @9")
        [answer] = await ann.wait_for_count(chat, daemon.user_id, 1)
        assert answer.body == "echo: my login is [secret] and [secret]"
        assert await daemon.stop() == 0
        assert set(proxy.asked) == {"CONNECT homeserver.invalid", "POST model.invalid"}
        proxy.login = "somebody:else"
        code, told = await daemon.command("check")
    assert (code, told.count("407")) == (1, 2), told
    code, gone = await daemon.command("check")
    assert (code, gone.count(address[7:])) == (1, 2), gone
    assert "Traceback" not in gone
    kept = [path.read_bytes() for path in daemon.data.glob("wintermute.db*")]
    for shown in (told, gone, "\n".join(daemon.log), *map(repr, kept)):
        assert "0canary0" not in shown
        assert b64encode(LOGIN.encode()).decode() not in shown


async def test_what_waits_for_a_connection_is_judged_when_it_is_there(
    scene: Scene, model: ModelServer, homeserver: Homeserver
) -> None:
    """F-003: Eve came in after the answer was on its way, and was heard of before it could leave."""
    ann, eve, release = await scene.person("ann"), await scene.person("eve"), asyncio.Event()
    async with web_proxy(homeserver.url) as (proxy, address):
        through = {"proxy": address, "proxy_login": {"file": "proxy"}}
        daemon = await scene.bot(ann, via="http://homeserver.invalid", start=False, matrix=through)
        (daemon.config.parent / "proxy").write_text(LOGIN)
        await daemon.start()
        chat = await scene.room(ann, daemon)
        model.script(Slow(release, Text(SECRET)))
        await ann.send(chat, "what do I earn?")
        await model.request_arrived(1)
        proxy.hold()
        release.set()
        await until(lambda: bool(daemon.rows("SELECT 1 FROM outbox_parts WHERE attempts > 0")))
        await slip_in(eve, ann, chat)
        await until(lambda: scope_of(daemon, chat) == f"room:{chat}")
        proxy.opens.set()
        await hears(ann, chat, KEPT_BACK)
        assert not knows(ann, chat)
        assert not knows(eve, chat)


async def test_a_model_is_asked_through_its_own_proxy(model: ModelServer) -> None:
    """F-053: TLS goes through a tunnel."""
    model.keyed(lambda _: Text("yes"))
    async with web_proxy(model.url) as (proxy, address):
        for url, proxied, wanted in (
            ("http://homeserver.invalid/v1", address, "yes"),
            ("https://model.invalid/v1", address, "502"),
            ("http://homeserver.invalid/v1", "http://127.0.0.1:9", "through the proxy"),
        ):
            settings = backend(url, proxy=proxied, proxy_login=Secret(LOGIN))
            hide = Redaction(secret_values(settings))
            async with aclosing(Endpoint("a", settings, new_id, redact=hide)) as endpoint:
                try:
                    said = (await endpoint.ask(HELLO)).text
                except Failed as failure:
                    said = str(failure)
            assert (wanted in said, "canary" in said) == (True, False)
    assert proxy.asked == ["POST homeserver.invalid", "CONNECT model.invalid"]
