"""A provider at its strictest: it refuses what the real one refuses, in its words, and answers in its form.

    deep = Strict("deepseek", server)

It answers a question by two calls, one more call, and a text. `tests/providers.toml` says what a
provider refuses and how it answers; how each check is made stands here. On loopback it is asked as
a private server, so `return_progress`, which no hosted one ever sees, is overlooked.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from tests.servers import function, rest, usage
from tests.world.model import Events, Fail, ModelServer, Seen, Step, Text, is_for_summary
from wintermute.messages import Json

PROVIDERS: Mapping[str, Json] = tomllib.loads(
    (Path(__file__).parent.parent / "providers.toml").read_text("utf-8")
)
NINE = re.compile(r"[a-zA-Z0-9]{9}")
ANYBODYS = ("skip_thought_signature_validator", "context_engineering_is_the_way_to_go")
"""Words of Google's for the signature of a call that its model did not make."""
OF_CALL = ("id", "type", "function", "index")


def calls_of(message: Json) -> list[Json]:
    found: list[Json] = message.get("tool_calls") or []
    return found


class Asked:
    """A request in the eyes of one provider. Checks give what is wrong, by its name where it has one.

    `sent`: the fields that went out with a call, by its id: those of its message and its own.
    """

    def __init__(self, name: str, body: Json, sent: Mapping[str, Json]) -> None:
        self.its = PROVIDERS[name]
        self.body = {key: body[key] for key in body if key != "return_progress"}
        self.messages: list[Json] = body["messages"]
        self._roles = [each["role"] for each in self.messages]
        last = max((n for n, role in enumerate(self._roles) if role == "user"), default=0)
        self.now = [each for each in self.messages[last:] if calls_of(each)]
        self.said = [each for each in self.messages if each["role"] == "assistant"]
        self.calls = [call for each in self.said for call in calls_of(each)]
        self.sent = sent

    def thoughts(self, _: Json) -> Iterable[str]:
        """With calls in view, each answer has its reasoning, and one of somebody else's has some."""
        for said in self.said if self.calls else ():
            own = next((self.sent[c["id"]] for c in calls_of(said) if c["id"] in self.sent), None)
            found = said.get("reasoning_content")
            if not found if own is None else found != own["reasoning_content"]:
                yield ""

    def unsigned(self, _: Json) -> Iterable[str]:
        """The first call of each step of this turn has its signature, or a word for none."""
        for call in (calls_of(each)[0] for each in self.now):
            own = self.sent.get(call["id"], {}).get("extra_content")
            found = call.get("extra_content") or {"google": {"thought_signature": ""}}
            if found != own if own else found["google"]["thought_signature"] not in ANYBODYS:
                yield call["function"]["name"]

    def details(self, _: Json) -> Iterable[str]:
        for said in self.now:
            own = self.sent.get(calls_of(said)[0]["id"], {}).get("reasoning_details")
            if own and said.get("reasoning_details") != own:
                yield calls_of(said)[0]["function"]["name"]

    def unanswered(self, _: Json) -> Iterable[str]:
        return self._unpaired(stray=False)

    def stray(self, _: Json) -> Iterable[str]:
        return self._unpaired(stray=True)

    def _unpaired(self, *, stray: bool) -> Iterator[str]:
        waiting: list[str] = []
        for message in [*self.messages, {"role": ""}]:
            if message["role"] == "tool" and message["tool_call_id"] in waiting:
                waiting.remove(message["tool_call_id"])
            elif message["role"] == "tool":
                yield from [message["tool_call_id"]] * stray
            else:
                yield from waiting * (not stray)
                waiting = [call["id"] for call in calls_of(message)]

    def unknown(self, _: Json) -> Iterable[str]:
        return (name for name in self.body if name not in self.its["fields"])

    def unknown_of_message(self, _: Json) -> Iterable[str]:
        known = (*self.its["of_messages"], *OF_CALL)
        return (
            name for each in (*self.messages, *self.calls) for name in each if name not in known
        )

    def id_of_nine(self, _: Json) -> Iterable[str]:
        return (call["id"] for call in self.calls if not NINE.fullmatch(call["id"]))

    def arguments(self, _: Json) -> Iterable[str]:
        return ("" for call in self.calls if call["function"]["arguments"][:1] != "{")

    def empty_content(self, _: Json) -> Iterable[str]:
        return ("" for each in self.said if each.get("content") is None and not calls_of(each))

    def field(self, row: Json) -> Iterable[str]:
        found = self.body.get(row["field"], "absent")
        is_taken = found in row["takes"] or row.get("where", "messages") not in self.body
        return [] if is_taken else [str(found)]

    def roles(self, row: Json) -> Iterable[str]:
        those, of = [*self._roles, "end"], len(row["roles"])
        return [""] * any(those[n : n + of] == row["roles"] for n in range(len(those)))

    def refusal(self) -> Fail | None:
        """The words in which this provider does not take it."""
        for row in self.its["refuses"]:
            check: Callable[[Json], Iterable[str]] = getattr(self, row["check"])
            for found in check(row):
                body = str(row["body"])
                return Fail(row["status"], body.replace(row["of"], found) if "of" in row else body)
        return None


class Strict:
    """One provider. `refused` counts; while `away`, it answers nothing."""

    def __init__(self, name: str, server: ModelServer) -> None:
        self.name = name
        self.server = server
        self.sent: dict[str, Json] = {}
        self.refused = 0
        self.away = False
        self.secret = f"thoughts of {name}"
        self._its = PROVIDERS[name]["answers"]
        server.keyed(self.answer)

    def answer(self, seen: Seen) -> Step:
        """Answer a request with a refusal, two calls, one more, or a text."""
        asked = Asked(self.name, seen.body, self.sent)
        if self.away or (wrong := asked.refusal()):
            self.refused += not self.away
            return Fail(500) if self.away else wrong or Fail(500)
        if is_for_summary(seen.body) or not seen.body.get("tools") or len(asked.now) > 1:
            return Text(f"{self.name} says so")
        tokens = usage(len(json.dumps(seen.body)) // 4, 9)
        return self._calling(seen.body["tools"][0]["function"], 1 if asked.now else 2, tokens)

    def _calling(self, tool: Json, count: int, tokens: Json) -> Events:
        its, n = self._its, len(self.sent)
        parts = [self._filled(each, n) for each in its.get("thoughts", ())]
        said = json.dumps(dict.fromkeys(tool["parameters"]["properties"], "hi"))
        signed = self._filled(its.get("signed", "{}"), n)
        calls = [
            function(tool["name"], said, id=self._id(n + k), **({} if k else signed))
            for k in range(count)
        ]
        back = _joined(parts)
        self.sent |= {call["id"]: back | ({} if k else signed) for k, call in enumerate(calls)}
        deltas = [json.loads(its["head"]), *parts, *self._parts(calls)]
        message = {"role": "assistant", "content": None, "tool_calls": calls, **back}
        return Events((*self._framed(deltas, tokens), "[DONE]"), told=message)

    def _filled(self, text: str, n: int) -> Json:
        found: Json = json.loads(text.replace("%", f"{self.secret} {n}"))
        return found

    def _id(self, n: int) -> str:
        start, letters = self._its["id"]
        return str(start) + hashlib.sha256(f"{self.name} {n}".encode()).hexdigest()[:letters]

    def _parts(self, calls: Iterable[Json]) -> Iterator[Json]:
        for n, call in enumerate(calls):
            number = {"index": n} if self._its["numbered"] else {}
            if not self._its["pieces"]:
                yield {"tool_calls": [{**call, **number}]}
                continue
            said = call["function"]
            yield {"tool_calls": [{**call, **number, "function": {**said, "arguments": ""}}]}
            for part in (said["arguments"][:3], said["arguments"][3:]):
                yield {"tool_calls": [rest(part, n)]}

    def _framed(self, deltas: Iterable[Json], end: Json) -> Iterator[Json]:
        where = self._its["usage"]
        for delta in deltas:
            yield _chunk(delta)
        yield _chunk({}, self._its["finish"]) | (end if where == "finish" else {})
        if where != "finish":
            yield (_chunk({"content": ""}) if where == "choice" else {"choices": []}) | end


def _chunk(delta: Json, finish: str | None = None) -> Json:
    return {"id": "1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def _joined(parts: Iterable[Json]) -> Json:
    """All parts of thoughts in one, as they are documented: texts grow, items of one type are one."""
    found: Json = {}
    for part in parts:
        for key, value in part.items():
            if isinstance(value, list):
                items = found.setdefault(key, [])
                is_more = items and items[-1]["type"] == value[0]["type"]
                items[-1:] = [items[-1] | value[0]] if is_more else [*items[-1:], *value]
            elif value and key not in ("role", "content", "channel"):
                found[key] = found.get(key, "") + value
    return found
