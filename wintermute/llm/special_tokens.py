"""A model's text, separated from the special tokens that its server left in. Pure (F-020).

    say ─▶ code        (a fence, or a span in a line: all of it is text)
        ─▶ reasoning   (<think>, channels that are not `final`)
        ─▶ a call      (`call_tokens`, a channel that names a function): held while nothing follows it
        ─▶ a title     (<recall>: a request for a page)
        ─▶ over        (a token that ends the turn: everything after it is dropped)

The text held back until more has come is bounded, except text that is never shown, so that a stream
of any length takes time in proportion to it.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from wintermute.llm.call_tokens import FENCE, FORMS, SPELLED, Form
from wintermute.text import clean

SpecialTokenState = Literal["say", "fence", "reason", "call", "header", "over"]

THINKING = (
    *("<think>", "<thinking>", "<thought>", "<reasoning>", "<seed:think>", "[think]"),
    "\N{WHITE LEFT-POINTING TRIANGLE}think\N{WHITE RIGHT-POINTING TRIANGLE}",
    "\N{FULLWIDTH LESS-THAN SIGN}think\N{FULLWIDTH GREATER-THAN SIGN}",
)
REASONING = {mark: (f"{mark[0]}/{mark[1:]}",) for mark in THINKING}
CALLS = {**FORMS, **SPELLED}
CHANNEL = ("<|channel|>", "<|start|>")
MESSAGE = "<|message|>"
TITLE, TITLE_END = "<recall>", "</recall>"
CHANNEL_ENDS = ("<|end|>", "<|call|>", "<|return|>", *CHANNEL)
TURN_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|return|>",
    "<end_of_turn>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)
DROPPED = (
    "<|im_start|>assistant\n",
    "<|im_start|>assistant",
    "<|im_start|>",
    "<start_of_turn>model\n",
    "<start_of_turn>model",
    "<start_of_turn>",
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "<|start_header_id|>assistant<|end_header_id|>",
    "<|begin_of_text|>",
    "<|end|>",
    "<|call|>",
    MESSAGE,
    "<channel|>",
    *(end for form in FORMS.values() if not form.is_text for end in form.ends if end != "</s>"),
)
ENDS = {
    **REASONING,
    "<|channel>": ("<channel|>",),  # Gemma
    **{mark: form.ends for mark, form in CALLS.items()},
}
CLOSING = frozenset(end for ends in REASONING.values() for end in ends)
MARKS = tuple(
    {*ENDS, *CLOSING, *CHANNEL, *TURN_ENDS, *DROPPED, TITLE, TITLE_END, "<s>", "</s>"} - {*SPELLED}
)
LONGEST_MARK = max(map(len, MARKS))
LONGEST_RUN = 200
LONGEST_SPAN = 2_000
"""Most characters of code within a line; a backtick that is not closed by then is plain text."""
LONGEST_HEADER = 500
LONGEST_TITLE = 1_000
LONGEST_UNENDED = 255
"""Most characters of a title without an end mark: some servers stop at that mark, and drop it."""
RUNS = (f"`{{1,{LONGEST_RUN}}}", f"~{{1,{LONGEST_RUN}}}")
PERHAPS = re.escape("".join(sorted({mark[0] for mark in MARKS})) + "`~")
FENCE_ENDS = re.compile(r"\n[ \t]{0,3}`{3,9}[ \t]{0,20}(?=\n|\Z)")
BEGUN = frozenset(mark[:n] for mark in MARKS for n in range(1, len(mark)))
"""Beginnings of marks."""
BEFORE_FENCE = re.compile(r"[ \t>*+\-\d.)]*")
PERHAPS_FENCE = re.compile(r"\n[ \t>]{0,20}[`~]*[ \t]{0,20}\Z")
NAMED = re.compile(r"to=(?:functions\.)?([\w.-]+)")


def _any_of(marks: Iterable[str], *more: str) -> re.Pattern[str]:
    longest_first = sorted(marks, key=len, reverse=True)
    return re.compile("|".join([*map(re.escape, longest_first), *more]), re.IGNORECASE)


SPECIAL = re.compile(f"(?=[{PERHAPS}])(?:{_any_of(MARKS, *RUNS).pattern})", re.IGNORECASE)
"""A mark or a run; the lookahead checks one character first, as most text has none."""
SPECIAL_OR_BARE = re.compile(f"{_any_of(SPELLED).pattern}|{SPECIAL.pattern}", re.IGNORECASE)
MARK = _any_of(MARKS)


@dataclass(frozen=True, slots=True)
class TextCall:
    """A call as text: `body` is the text between its marks, and `raw` includes them.

    `quoted`: its line is a quotation.
    """

    form: Form
    body: str
    raw: str = ""
    quoted: bool = False


def text_of_calls(tail: Iterable[TextCall | str], *, whole: bool = False) -> str:
    """Return the text of false calls, and the blanks between them; `whole`: with hidden forms, too."""
    shown = (
        each if isinstance(each, str) else each.raw if whole or each.form.is_text else ""
        for each in tail
    )
    return "".join(shown)


class SpecialTokens:
    """Takes a model's output piece by piece, and gives the part that a person may read.

    `aloud`: this model ends reasoning without a beginning, so that its text is held until then.
    `recalls`: it may ask for pages; otherwise such a tag is text. `spells`: bare JSON may be a
    call. `blocks`: our context blocks, one of which it may repeat first.
    """

    def __init__(
        self,
        *,
        aloud: bool = False,
        recalls: bool = False,
        spells: bool = False,
        blocks: Collection[str] = (),
    ) -> None:
        self.tail: list[TextCall | str] = []
        """Calls and blanks at the end so far."""
        self.titles: list[str] = []
        """Titles of requested pages."""
        self.aloud = False
        """True if reasoning ended that had not begun: all text before it was reasoning."""
        self._holds_text = aloud
        self._recalls = recalls
        self._special = SPECIAL_OR_BARE if spells else SPECIAL
        self._blocks = blocks
        self._rewound = False
        self._state: SpecialTokenState = "say"
        self._output: list[str] = []
        self._shown_pieces = 0
        self._cut = False
        self._opens_line = True
        self._struck = 0
        self._half, self._rest, self._at = "", "", 0
        self._ends = self._closes = SPECIAL
        self._form, self._opening, self._line = FENCE, "", ""
        self._call_text: list[str] = []

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._output)

    def fresh(self) -> str | None:
        """Return the new text; None: drop the text so far, it was reasoning."""
        if self._holds_text:
            return ""
        if self._rewound:
            self._rewound, self._shown_pieces = False, 0
            return None
        pieces = self._output[self._shown_pieces :]
        self._shown_pieces = len(self._output)
        return "".join(pieces)

    def feed(self, piece: str) -> None:
        """Take the next piece, cut anywhere, also between the halves of one character."""
        text = self._half + piece
        in_two = text[-1:] == "\r" or "\ud800" <= text[-1:] < "\udc00"
        self._half = text[-1] if in_two else ""
        self._take(text[:-1] if in_two else text, final=False)

    def end(self) -> None:
        """Finish: nothing follows."""
        self._take(self._half, final=True)
        self._half = ""
        if self._state == "call":
            self._end_call()
        self._holds_text = False

    def settle(self, text: str | None = None) -> None:
        """Replace the calls at the end by this text; None: by their text if they are no calls."""
        text = text_of_calls(self.tail) if text is None else text
        self.tail.clear()
        if text:
            self._output.append(text)

    def withdraw(self) -> None:
        """Drop all text: it was calls only."""
        self.tail.clear()
        self._output.clear()

    def _take(self, text: str, *, final: bool) -> None:
        if not text.isascii():
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        self._rest, self._at = self._rest[self._at :] + clean(text), 0
        goes_on = not self._blocks or self._drop_repeated_block(final)
        while goes_on and self._at < len(self._rest):
            match self._state:
                case "say":
                    goes_on = self._say(final)
                case "fence":
                    goes_on = self._in_fence(final)
                case "header":
                    goes_on = self._header(final)
                case "over":
                    self._at = len(self._rest)
                case _:
                    goes_on = self._hidden(final)

    # Each of these consumes part of the rest, and returns False when it needs more text.

    def _drop_repeated_block(self, final: bool) -> bool:
        """Drop one of our blocks that the model repeated word for word (F-044)."""
        begun = self._rest.lstrip()
        whole = next((each for each in self._blocks if begun.startswith(each)), "")
        if not (whole or final) and any(each.startswith(begun) for each in self._blocks):
            return False
        if whole:
            self._cut, self._at = True, len(self._rest) - len(begun) + len(whole)
        self._blocks = ()
        return True

    def _say(self, final: bool) -> bool:
        match = self._special.search(self._rest, self._at)
        start = match.start() if match else len(self._rest)
        if not final:
            start = min(start, self._partial_mark_at(start))
        self._emit(start)
        if match is None or start < match.start():
            return False
        mark = match[0].lower()
        if not final and self._may_grow(mark):
            return False
        is_code = mark[0] in "`~"
        return self._code(match[0], final) if is_code else self._marked(match, final)

    def _marked(self, match: re.Match[str], final: bool) -> bool:
        mark = match[0].lower()
        if mark in (TITLE, TITLE_END) and not self._recalls:
            self._emit(match.end())
            return True
        if mark == TITLE:
            return self._title(match.end(), final)
        self._at = match.end()
        if mark in ("<s>", "</s>"):
            self._strike(match[0])
        else:
            self._enter(match[0])
        return True

    def _title(self, begin: int, final: bool) -> bool:
        """Take a requested page's title; if it is none, drop only the mark before it."""
        last = begin + LONGEST_TITLE + len(TITLE_END)
        match = MARK.search(self._rest, begin, last)
        if match is None and not final and len(self._rest) < last:
            return False
        end, mark = (match.start(), match[0].lower()) if match else (len(self._rest), "")
        title = self._rest[begin:end].strip()
        is_line = 0 < len(title) <= LONGEST_UNENDED and "\n" not in title
        is_last = mark in TURN_ENDS or (match is None and len(self._rest) < last)
        self._cut, self._at = True, begin
        if mark == TITLE_END:
            end += len(TITLE_END)
        if mark == TITLE_END or (is_line and is_last):
            self.titles.append(title)
            self._at = end
        return True

    def _partial_mark_at(self, before: int) -> int:
        """Return the first place at the end that may be the beginning of a mark."""
        first = max(self._at, len(self._rest) - LONGEST_MARK)
        for at in range(first, min(before, len(self._rest))):
            if self._rest[at:].lower() in BEGUN:
                return at
        return len(self._rest)

    def _may_grow(self, mark: str) -> bool:
        """Return True if the next mark may be a longer one."""
        begun = self._rest[self._at : self._at + LONGEST_MARK + LONGEST_RUN].lower()
        if mark[0] in "`~":
            return begun == mark and len(mark) < LONGEST_RUN
        return begun in BEGUN

    def _code(self, run: str, final: bool) -> bool:
        """Take a fence, a span within the line, or only backticks."""
        at, after = self._at, self._at + len(run)
        if len(run) >= 3 and self._opens_line:
            line_end = self._rest.find("\n", after, after + LONGEST_RUN)
            if line_end < 0 and not final and len(self._rest) < after + LONGEST_RUN:
                return False
            info = self._rest[after : line_end if line_end >= 0 else len(self._rest)]
            if line_end >= 0 and run == "```" and info.strip().lower() == "tool_code":
                self._opening, self._at = f"{run}{info}", line_end
                self._begin_hidden("call", FENCE_ENDS, FENCE)
                return True
            if line_end >= 0 and ("`" not in info or run[0] == "~"):
                self._emit(line_end)
                self._closes = re.compile(rf"\n[ \t>]*{run[0]}{{{len(run)},}}[ \t]*(?=\n|\Z)")
                self._state = "fence"
                return True
        end = after
        if run[0] == "`":
            last = min(len(self._rest), after + LONGEST_SPAN)
            blank = self._rest.find("\n\n", after, last)
            closing = re.compile(f"(?<!`){run}(?!`)").search(
                self._rest, after, last if blank < 0 else blank
            )
            is_open = blank < 0 and last == len(self._rest) and not final
            if is_open and (closing is None or closing.end() == last):
                return False
            end = closing.end() if closing else after
        self._emit(end, from_=at)
        return True

    def _in_fence(self, final: bool) -> bool:
        match = self._closes.search(self._rest, self._at)
        if match and (final or match.end() < len(self._rest)):
            self._emit(match.end())
            self._state = "say"
            return True
        perhaps = PERHAPS_FENCE.search(self._rest, max(self._at, len(self._rest) - LONGEST_RUN))
        self._emit(perhaps.start() if perhaps and not final else len(self._rest))
        return False

    def _header(self, final: bool) -> bool:
        end = self._rest.find(MESSAGE, self._at, self._at + LONGEST_HEADER)
        if end < 0 and not final and len(self._rest) < self._at + LONGEST_HEADER:
            return False
        header = self._rest[self._at : end if end >= 0 else self._at]
        self._at += len(header) + (len(MESSAGE) if end >= 0 else 0)
        channel = header.rsplit("<|channel|>", 1)[-1].split()
        named = NAMED.search(header)
        if named:
            self._opening = ""
            self._begin_hidden("call", _any_of(CHANNEL_ENDS), Form(CHANNEL_ENDS, name=named[1]))
        elif channel[:1] in (["final"], ["assistant"]):
            self._state = "say"
        else:
            self._begin_hidden("reason", _any_of(CHANNEL_ENDS))
        return True

    def _hidden(self, final: bool) -> bool:
        match = self._ends.search(self._rest, self._at)
        if match and not final and match.end() == len(self._rest):
            return False
        end = match.start() if match else len(self._rest)
        if match is None and not final:
            end = max(self._at, end - LONGEST_MARK)
        if self._state == "call":
            self._call_text.append(self._rest[self._at : end])
        self._at = end
        if match is None:
            return False
        self._at = match.end()
        begins = (mark := match[0].lower()) in ENDS or mark in CHANNEL
        if self._state == "call":
            self._end_call("" if begins else match[0])
        self._state = "say"
        if begins:
            self._enter(match[0])
        return True

    def _enter(self, said: str) -> None:
        """Change the state after a mark."""
        mark = said.lower()
        self._cut = self._cut or mark not in CALLS or not CALLS[mark].is_text
        if mark in CLOSING:
            self._void_text()
        elif mark in TURN_ENDS:
            self._state = "over"
        elif mark in CHANNEL:
            self._state = "header"
        elif mark in CALLS:
            self._opening = said
            self._begin_hidden("call", _any_of(ENDS[mark]), CALLS[mark])
        elif mark in ENDS:
            self._begin_hidden("reason", _any_of(ENDS[mark]))

    def _void_text(self) -> None:
        self._rewound = self._rewound or self._shown_pieces > 0
        self.aloud, self._holds_text = True, False
        self._output.clear()
        self.tail.clear()
        self.titles.clear()
        self._shown_pieces, self._opens_line, self._line = 0, True, ""

    def _begin_hidden(
        self, state: SpecialTokenState, ends: re.Pattern[str], form: Form = FENCE
    ) -> None:
        self._state, self._ends, self._form = state, ends, form

    def _end_call(self, closing: str = "") -> None:
        body, form = "".join(self._call_text), self._form
        raw = "" if form.name else f"{self._opening}{body}{closing}"
        quoted = self._line.lstrip().startswith(">")
        self.tail.append(TextCall(form, (raw if form.is_part else body).strip(), raw, quoted))
        self._call_text.clear()

    def _strike(self, mark: str) -> None:
        """Keep HTML's struck text; but an end mark without a beginning ends a turn for some models."""
        self._struck += 1 if mark[1] != "/" else -1
        if self._struck < 0:
            self._struck, self._cut = 0, True
        else:
            self._append(mark)

    def _emit(self, end: int, from_: int | None = None) -> None:
        """Add the text before this place to the output."""
        text = self._rest[self._at if from_ is None else from_ : end]
        self._at = max(self._at, end)
        if text and self.tail and text.isspace():
            self.tail.append(text)
        elif text:
            self._append(text)

    def _append(self, text: str) -> None:
        """Add text, and before it the held calls: more followed, so they are none."""
        if self.tail:
            text, self.tail = text_of_calls(self.tail) + text, []
        if self._cut and not self._output:
            text = text.lstrip()
        if text:
            self._output.append(text)
            _, line_end, line = text.rpartition("\n")
            begins = bool(line_end) or self._opens_line
            self._opens_line = begins and BEFORE_FENCE.fullmatch(line) is not None
            self._line = (line if line_end else self._line + line)[:LONGEST_MARK]


def without_recalls(text: str) -> str:
    """Return a text without tags that ask for pages, except those in code."""
    if TITLE not in text.lower() and TITLE_END not in text.lower():
        return text
    markup = SpecialTokens(recalls=True)
    markup.feed(text)
    markup.end()
    markup.settle()
    return markup.text
