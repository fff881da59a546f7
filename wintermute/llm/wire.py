"""Parses chat-completions answers, streamed or whole, however badly formed. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wintermute.config.secrets import UNHIDDEN, Redaction
from wintermute.ids import NewId
from wintermute.llm.failures import NOTHING, Empty, Outage, of_error
from wintermute.llm.json_repair import parsed, repaired, unaliased
from wintermute.llm.provider_fields import OF_CALL, OF_MESSAGE, fields_as_json, merge_fields
from wintermute.llm.special_tokens import SpecialTokens, text_of_calls
from wintermute.llm.template_tool_calls import CallContext, known_name, split_calls, typed
from wintermute.llm.text_tool_calls import json_calls, may_be_calls
from wintermute.llm.usage import count, reported
from wintermute.messages import BROKEN_OFF, CUT, ENDLESS, Call, Json, Usage, mapping
from wintermute.text import clean, is_blank

NOTHING_SEEN = CallContext()
MOST_BYTES = 32 * 1024 * 1024
"""Limit of one answer on the wire. Streams need some 250 bytes per token."""
LONGEST_NAME = 200
STREAM_FIELDS = (b":", b"event:", b"id:", b"retry:")
BROKE_DOWN = frozenset({"error", "abort", "insufficient_system_resource", "network_error"})
"""Finish reasons of answers that a server could not complete."""
FINISH = {
    **dict.fromkeys(
        ("max_tokens", "max_output_tokens", "max_length", "model_length", "token_limit"), "length"
    ),
    **dict.fromkeys(("safety", "recitation", "blocklist", "spii", "sensitive"), "content_filter"),
    **dict.fromkeys(
        ("prohibited_content", "content-filter", "guardrail_intervened"), "content_filter"
    ),
}
"""Other words for finish reasons, and the API's word for each."""


def finish_reason_of(finish: str, *, told: bool, named: bool, used: int, allowed: int) -> str:
    """Return the reason why an answer ended; one of `BROKEN_OFF` while its end is in doubt (F-071).

    `finish`: the server's reason, "" for none. `told`: it gave one or said [DONE]. `named`: it did
    so for an earlier answer. `used`: tokens of the answer, 0 if it counts none. If they are more
    than `allowed`, the server does not obey that limit, and the answer did not end at it.
    """
    if finish in BROKE_DOWN or finish in BROKEN_OFF:
        return finish
    if used and used == allowed:
        return "length"
    if told:
        return finish or "stop"
    return CUT if named else ENDLESS


@dataclass(frozen=True, slots=True)
class Answer:
    """One usable answer, see `Reply`. `usage` is None when the server reported none."""

    text: str
    calls: tuple[Call, ...]
    finish_reason: str
    usage: Usage | None
    model: str
    kept: str = ""


class _Call:
    """A call whose parts are still coming in."""

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.fields: Json = {}

    def extend(self, delta: Json) -> bool:
        """Take one more part; return True if it had any content."""
        known = len(self.id), len(self.name), len(self.arguments)
        merge_fields(self.fields, delta, OF_CALL)
        self.id = self.id or _string(delta.get("id"))
        function = mapping(delta.get("function"))
        name = _string(function.get("name"))
        if name != self.name:  # some servers repeat the name in every part
            self.name += name
        if arguments := _arguments_of(function):
            self.arguments.append(arguments)
        return known != (len(self.id), len(self.name), len(self.arguments))

    def is_followed_by(self, delta: Json) -> bool:
        """Return True if a part with this call's index is another call: some servers number all of them 0."""
        call_id, function = _string(delta.get("id")), mapping(delta.get("function"))
        if call_id and self.id:  # some servers give each part an id of its own, but no name again
            return call_id != self.id and bool(_string(function.get("name")))
        # Others give no ids: after complete arguments, more can only be those of another call.
        # These servers send each call in one part, so only the first is checked.
        begins = bool(_string(function.get("name"))) and _arguments_of(function)[:1] == "{"
        return begins and len(self.arguments) == 1 and self.is_whole

    @property
    def is_whole(self) -> bool:
        """True if its arguments are complete."""
        text = "".join(self.arguments)
        return bool(text.strip()) and parsed(repaired(text)) is not None


class AnswerParser:
    """Collects the bytes of one answer; recognises streams and whole bodies by their content.

    `offered`: the parameters of the tools that may be called, by name; without tools no tag is
    interpreted. `aloud`: see `SpecialTokens`. `spells`: this model writes calls as text, see `text_tool_calls`;
    such a text is held back until it cannot be one. `view`: texts that a call may have been copied
    from.

    Raises: Failed, from `feed` and `answer`, when there can be no usable answer.
    """

    def __init__(
        self,
        redact: Redaction = UNHIDDEN,
        offered: Mapping[str, Json] | None = None,
        *,
        aloud: bool = False,
        spells: bool = False,
        view: CallContext = NOTHING_SEEN,
    ) -> None:
        self._redact = redact
        self._holds_back = spells
        self._offered = offered or {}
        self._view = view
        self._markup = SpecialTokens(
            aloud=aloud,
            recalls=bool(offered),
            spells=spells and bool(offered),
            blocks=view.blocks,
        )
        self.begun = False
        """True after the first token: text, reasoning or part of a call (F-017)."""
        self.ended = False
        """True after [DONE]."""
        self.heard = 0
        """The number of events with a token, a finish reason or [DONE]; empty ones do not count."""
        self.progress: tuple[int, int] | None = None
        """Tokens of the request that the server has read, and their total, if it reports them."""
        self._size = 0
        self._line = bytearray()
        self._body: list[bytes] = []
        self._streamed = False
        self._chose = False
        self._refusal: list[str] = []
        self._calls: list[_Call] = []
        self._slots: dict[int, _Call] = {}
        self._fields: Json = {}
        self._finish = ""
        self._usage: Usage | None = None
        self._model = ""

    @property
    def aloud(self) -> bool:
        """True if reasoning without a beginning ended in this answer."""
        return self._markup.aloud

    def fresh(self) -> str | None:
        """Return the new text; None: drop the text so far, see `SpecialTokens`."""
        if self._holds_back and may_be_calls(self._markup.text):
            return ""
        self._holds_back = False
        return self._markup.fresh()

    @property
    def complete(self) -> bool:
        """True if the stream said that the answer is whole; a connection lost now does no harm."""
        return self.ended or bool(self._finish)

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes, cut anywhere."""
        self._size += len(chunk)
        if self._size > MOST_BYTES:
            raise Outage("garbage", f"sent more than {MOST_BYTES} bytes in one answer")
        self._line += chunk
        if b"\n" in chunk:
            *lines, rest = self._line.split(b"\n")
            self._line = rest
            for line in lines:
                self._take_line(bytes(line))

    def answer(self, new_id: NewId, allowed: int = 0, *, named: bool = False) -> Answer:
        """Return the answer, once all bytes are in. `allowed`, `named`: see `finish_reason_of`."""
        self._take_line(bytes(self._line))
        self._line.clear()
        if not self._streamed:
            self._take_document(b"\n".join(self._body), "message")
        if not self._chose:
            raise Outage("garbage", "sent an answer without choices")
        self._markup.end()
        finish = self._finish_reason(allowed, named=named)
        calls = self._all_calls(new_id, is_whole=finish not in (*BROKEN_OFF, ENDLESS))
        text_so_far, self._holds_back = self._markup.text, False
        if self._markup.titles:
            text_so_far, calls = text_so_far.rstrip(), (*calls, *self._recalls(new_id))
        text = self._redact(clean("".join(self._refusal)) if is_blank(text_so_far) else text_so_far)
        if finish in BROKE_DOWN:
            raise Outage("connection", f"broke off its answer ({finish})")
        if finish in (ENDLESS, CUT) and not self._may_be_all(text, calls):
            raise Outage("connection", "ended the stream before the answer was complete")
        if not text.strip() and not calls and self._reason not in BROKEN_OFF:
            raise Empty(
                "empty",
                f"answered with neither text nor calls (finish_reason {finish[:40]})",
                usage=self._usage or NOTHING,
            )
        model = _name(self._redact(self._model))
        return Answer(text, calls, finish, self._usage, model, self._provider_fields())

    def _provider_fields(self) -> str:
        """Return the provider fields of the calls; calls written as text have none (F-040)."""
        fields = [call.fields for call in self._calls if call.name.strip()]
        return fields_as_json(self._fields, fields, self._redact) if fields else ""

    def _all_calls(self, new_id: NewId, *, is_whole: bool) -> tuple[Call, ...]:
        """Return the model's calls; if there are none, those at the end of its text (F-020, F-044)."""
        calls = [_finished(call, new_id) for call in self._calls if call.name.strip()]
        written = [] if calls else self._calls_in_text(is_whole=is_whole)
        self._markup.settle()  # unless `_calls_in_text` has done so
        calls += [
            Call(new_id("call"), name, _arguments(arguments), "tag") for name, arguments in written
        ]
        return tuple(_redacted(_corrected(call, self._offered), self._redact) for call in calls)

    def _calls_in_text(self, *, is_whole: bool) -> Sequence[tuple[str, str]]:
        markup, view = self._markup, self._view
        if self._holds_back:
            text = markup.text + text_of_calls(markup.tail, whole=True)
            bare_calls = json_calls(text, self._offered)
            if bare_calls and not view.holds(bare_calls):
                markup.withdraw()
                return bare_calls
        stays, calls = split_calls(markup.tail, markup.text, self._offered, view, is_whole=is_whole)
        markup.settle(stays)
        return calls

    def _recalls(self, new_id: NewId) -> Iterator[Call]:
        """Yield the pages that a text asks for, even if that tool is not offered (W-035)."""
        for title in self._markup.titles:
            arguments = json.dumps({"title": title}, ensure_ascii=False)
            yield _redacted(Call(new_id("call"), "recall", arguments, "tag"), self._redact)

    @property
    def _reason(self) -> str:
        """The server's finish reason, in the API's word."""
        if self._refusal and not self._markup.text.strip():
            return "refusal"
        reason = _name(self._redact(self._finish))
        return FINISH.get(reason.lower(), reason)

    def _finish_reason(self, allowed: int, *, named: bool) -> str:
        told = self.complete or not self._streamed
        used = self._usage.tokens_out if self._usage else 0
        return finish_reason_of(self._reason, told=told, named=named, used=used, allowed=allowed)

    def _may_be_all(self, text: str, calls: Sequence[Call]) -> bool:
        """Return True if a stream without a finish reason may be a whole answer (F-018)."""
        whole = all(call.is_whole for call in self._calls)
        return whole and bool(text.strip() or calls or self._calls)

    def _take_line(self, raw: bytes) -> None:
        line = raw.strip()
        if line.startswith(b"data:"):
            self._streamed = True
            event = line[5:].strip()
            if event == b"[DONE]":
                self.heard += not self.ended
                self.ended = True
            elif event and not self.ended:
                self._take_document(event, "delta")
        elif line.startswith(b"error:"):  # llama.cpp of 2025
            self._take_document(b'{"error": %b}' % line[6:], "delta")
        elif line and not line.startswith(STREAM_FIELDS):
            self._body.append(line)

    def _take_document(self, raw: bytes, part: str) -> None:
        try:
            document = mapping(json.loads(raw.decode("utf-8", "replace")))
            error_field = document if document.get("object") == "error" else document.get("error")
            error = self._redact.tree(error_field)
        except (ValueError, RecursionError):
            description = "a web page" if raw.startswith(b"<") else "something that is not JSON"
            raise Outage(
                "garbage", f"answered with {description}: check that its base_url is right"
            ) from None
        if error:
            raise of_error(error)
        self._model = self._model or _string(document.get("model"))
        self._usage = reported(document) or self._usage
        self.progress = _progress(document.get("prompt_progress")) or self.progress
        choices = document.get("choices")
        if isinstance(choices, list) and choices:
            self._take_choice(mapping(choices[0]), part)

    def _take_choice(self, choice: Json, part: str) -> None:
        self._chose = True
        if error := self._redact.tree(choice.get("error")):
            raise of_error(error)
        known, self._finish = self._finish, _string(choice.get("finish_reason")) or self._finish
        self.heard += self._finish != known
        message = mapping(choice.get(part) or choice.get("message"))
        texts, refusal = _texts(message.get("content")), _texts(message.get("refusal"))
        for text in texts:
            self._markup.feed(text)
        self._refusal.extend(refusal)
        merge_fields(self._fields, message, OF_MESSAGE)  # including reasoning, which is never shown
        if texts or refusal or any(message[key] for key in message.keys() - OF_MESSAGE):
            self.begun, self.heard = True, self.heard + 1
        self._take_calls(message.get("tool_calls"))
        if message.get("function_call"):  # the API's older form
            self._take_calls([{"index": 0, "function": message["function_call"]}])

    def _take_calls(self, deltas: Any) -> None:
        for position, item in enumerate(deltas if isinstance(deltas, list) else ()):
            delta = mapping(item)
            index = delta.get("index")
            slot = index if isinstance(index, int) else position
            call = self._slots.get(slot)
            if call is None or call.is_followed_by(delta):
                call = self._slots[slot] = _Call()
                self._calls.append(call)
            self.heard += call.extend(delta)
            self.begun = True


def _arguments_of(function: Json) -> str:
    arguments = function.get("arguments")
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    return json.dumps(arguments, ensure_ascii=False)


def _finished(call: _Call, new_id: NewId) -> Call:
    # Before secrets are hidden: a repair can reveal more of them.
    written = repaired("".join(call.arguments))
    name, arguments = unaliased(_name(call.name), _arguments(written))
    return Call(clean(call.id).strip() or new_id("call"), name, arguments)


def _corrected(call: Call, offered: Mapping[str, Json]) -> Call:
    name = known_name(call.name, offered)
    return replace(call, name=name, arguments=typed(name, call.arguments, offered))


def _redacted(call: Call, redact: Redaction) -> Call:
    """Return the call without secrets, even if the model wrote them with escapes."""
    arguments = redact(call.arguments)
    if "\\" in arguments:
        try:
            usual = json.dumps(json.loads(arguments), ensure_ascii=False)
        except (ValueError, RecursionError):
            usual = arguments
        if redact(usual) != usual:
            arguments = redact(usual)
    return replace(call, id=redact(call.id), name=redact(call.name), arguments=arguments)


def _arguments(text: str) -> str:
    """Return the JSON text as the model wrote it; "{}" if it is empty."""
    if "\\ud" in text.lower():  # an escaped lone surrogate: visible only once decoded
        try:
            text = json.dumps(json.loads(text), ensure_ascii=False)
        except (ValueError, RecursionError):
            return clean(text)
    return _whole([text]) if text.strip() else "{}"


def _whole(parts: Iterable[str]) -> str:
    """Join the parts of a text; a character that was cut in two halves is whole again."""
    joined = "".join(parts).encode("utf-16", "surrogatepass")
    return clean(joined.decode("utf-16", "replace"))


def _texts(content: Any) -> list[str]:
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return [text for text in texts if isinstance(text, str) and text]


def _progress(document: Any) -> tuple[int, int] | None:
    progress = mapping(document)
    total = count(progress.get("total"))
    return (min(count(progress.get("processed")), total), total) if total else None


def _name(text: str) -> str:
    return clean(text[:LONGEST_NAME]).strip()


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""
