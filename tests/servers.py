"""What model servers really send at `/v1/chat/completions`, and what our reader must make of it.

Facts, told with values of our own: each row names where its shape is described. A row is a stream
(lines without their ends) or a whole body, a status, and the answer or the failure it stands for.
"""

import json
from dataclasses import dataclass
from functools import partial
from typing import Any

from wintermute.llm.failures import Empty, Failed, Outage, Refused, TooLarge
from wintermute.messages import Json

Called = tuple[str, Json]
"""The name of a tool and its arguments."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One answer of one server. `finish` is one of ours, or the server's word if we have none."""

    server: str
    what: str
    body: tuple[str, ...] | Json | list[Any] | str
    source: str
    text: str = ""
    calls: tuple[Called, ...] = ()
    finish: str = "stop"
    usage: tuple[int, int] | None = None
    """Tokens in and out; None: nothing is claimed."""
    failure: type[Failed] | None = None
    status: int = 200

    @property
    def name(self) -> str:
        return f"{self.server}: {self.what}"

    @property
    def data(self) -> bytes:
        """The body, as it comes over the wire."""
        if isinstance(self.body, str):
            return self.body.encode()
        if not isinstance(self.body, tuple):
            return json.dumps(self.body).encode()
        ends = ("\n" if line.startswith(("event:", "id:")) else "\n\n" for line in self.body)
        return "".join(map("".join, zip(self.body, ends, strict=True))).encode()


DONE = "data: [DONE]"
NOTES: Json = {"path": "notes.txt"}
DIARY: Json = {"path": "diary.txt"}
READ_NOTES: Called = ("read_file", NOTES)
READ_DIARY: Called = ("read_file", DIARY)


def event(document: Json) -> str:
    return f"data: {json.dumps(document, ensure_ascii=False)}"


def chunk(frame: Json, delta: Json | None, finish: str | None = None, **beside: Any) -> str:
    """An event of a stream; `beside` stands in its choice, `frame` around it."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish, **beside}
    return event({"object": "chat.completion.chunk", "choices": [choice], **frame})


def whole(message: Json, finish: str | None = "stop", **frame: Any) -> Json:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return {"id": "chatcmpl-7", "object": "chat.completion", "choices": [choice], **frame}


def usage(tokens_in: int, tokens_out: int, **more: Any) -> Json:
    total = tokens_in + tokens_out
    counts = {"prompt_tokens": tokens_in, "completion_tokens": tokens_out, "total_tokens": total}
    return {"usage": {**counts, **more}}


def function(name: str | None, arguments: Any, **more: Any) -> Json:
    return {**more, "type": "function", "function": {"name": name, "arguments": arguments}}


def tools(*parts: Json, **more: Any) -> Json:
    return {**more, "tool_calls": list(parts)}


def rest(arguments: str, index: int = 0) -> Json:
    """A later part of a call, as OpenAI sends it."""
    return {"index": index, "function": {"arguments": arguments}}


def error(message: str, **more: Any) -> Json:
    return {"error": {"message": message, **more}}


ROLE: Json = {"role": "assistant", "content": ""}
AT_NOTES = '{"path": "notes.txt"}'
AT_DIARY = '{"path": "diary.txt"}'
TIMINGS: Json = {"timings": {"cache_n": 0, "prompt_n": 9, "predicted_n": 4, "predicted_ms": 15.2}}

llama = partial(
    chunk, {"created": 1, "id": "chatcmpl-L", "model": "q.gguf", "system_fingerprint": "b6097-95"}
)
LLAMA = (
    Sent(
        "llama.cpp",
        "text; role with null content, usage and timings at the end",
        (
            llama({"role": "assistant", "content": None}),
            llama({"content": "Grüß"}),
            llama({"content": " Gott 👋"}),
            llama({}, "stop"),
            event({"choices": [], **usage(9, 4), **TIMINGS}),
            DONE,
        ),
        "g0t4/ask-openai.nvim, harmony/NOTES.md; ggml-org/llama.cpp server-task.cpp",
        text="Grüß Gott 👋",
        usage=(9, 4),
    ),
    Sent(
        "llama.cpp",
        "reasoning_content, then text",
        (
            llama({"role": "assistant", "content": None}),
            llama({"reasoning_content": "They greet"}),
            llama({"reasoning_content": " me."}),
            llama({"content": "Hello."}),
            llama({}, "stop"),
            DONE,
        ),
        "openai-php/client issue 780",
        text="Hello.",
    ),
    Sent(
        "llama.cpp",
        "a call whose first part has id, name and the first of the arguments",
        (
            llama({"role": "assistant", "content": None}),
            llama(tools(function("read_file", "{", index=0, id="fc_a"))),
            llama(tools(rest('"path": "no'))),
            llama(tools(rest('tes.txt"}'))),
            llama({}, "tool_calls"),
            event({"choices": [], **usage(88, 17), **TIMINGS}),
            DONE,
        ),
        "ggml-org/llama.cpp issue 22722",
        calls=(READ_NOTES,),
        finish="tool_calls",
        usage=(88, 17),
    ),
    Sent(
        "llama.cpp",
        "a whole answer with a closing tag alone, for the template had opened it",
        whole(
            {"content": "They say hello.\nI greet back.\n</think>\n\nHello!"},
            system_fingerprint="b9294-0f",
            **usage(11, 31),
            **TIMINGS,
        ),
        "ggml-org/llama.cpp issue 23320",
        text="Hello!",
        usage=(11, 31),
    ),
    Sent(
        "llama.cpp",
        "harmony's channels as they are, cut within the tokens",
        (
            llama({"content": "<|chan"}),
            llama({"content": "nel|>analysis<|message|>Just a test."}),
            llama({"content": "<|start|>assistant<|channel|>final<|mess"}),
            llama({"content": "age|>Here I am."}),
            llama({}, "stop"),
            DONE,
        ),
        "g0t4/ask-openai.nvim, harmony/NOTES.md (<|end|> is left out by the server)",
        text="Here I am.",
    ),
    Sent(
        "llama.cpp",
        "--reasoning-format none: the analysis with its tokens, the answer without",
        (
            llama({"content": "<|channel|>analysis<|message|>Hm.<|end|>"}),
            llama({"content": "Here I am."}),
            llama({}, "stop"),
            DONE,
        ),
        "ggml-org/llama.cpp pull 15181, hmmroger 2025-08-16",
        text="Here I am.",
    ),
    Sent(
        "llama.cpp",
        "an error in a field that SSE does not know",
        (
            'error: {"code":400,"message":"the request exceeds the available context size.'
            ' try increasing the context size or enable context shift",'
            '"type":"invalid_request_error"}',
            DONE,
        ),
        "coddy-project/coddy-agent pull 106 (builds of 2025)",
        failure=TooLarge,
    ),
    Sent(
        "llama.cpp",
        "an error in the middle of a stream",
        (
            llama({"content": "Once"}),
            event(error("Compute error.", code=500, type="server_error")),
            DONE,
        ),
        "coddy-project/coddy-agent pull 106 (since the end of 2025)",
        failure=Outage,
    ),
    Sent(
        "llama.cpp",
        "too large, before the stream",
        error(
            "the request exceeds the available context size, try increasing it",
            code=400,
            type="exceed_context_size_error",
            n_prompt_tokens=14429,
            n_ctx=8192,
        ),
        "ggml-org/llama.cpp issue 17284, oobabooga/textgen issue 7257",
        status=400,
        failure=TooLarge,
    ),
    Sent(
        "llama.cpp",
        "too large, as a server error",
        error(
            "the request exceeds the available context size. try increasing the context size",
            code=500,
            type="exceed_context_size_error",
            n_prompt_tokens=1407,
            n_ctx=256,
        ),
        "ggml-org/llama.cpp pull 15780",
        status=500,
        failure=TooLarge,
    ),
    Sent(
        "llama.cpp",
        "the model is being loaded",
        error("Loading model", code=503, type="unavailable_error"),
        "ggml-org/llama.cpp tools/server/README.md, GET /health",
        status=503,
        failure=Outage,
    ),
    Sent(
        "llama.cpp",
        "tools without --jinja",
        error("tools param requires --jinja flag", code=500, type="server_error"),
        "AstrBotDevs/AstrBot issue 758",
        status=500,
        failure=Refused,
    ),
)

ollama = partial(
    chunk, {"id": "chatcmpl-518", "created": 1, "model": "q", "system_fingerprint": "fp_ollama"}
)
OLLAMA = (
    Sent(
        "ollama",
        "text; the role in each part, usage at the end",
        (
            ollama({"role": "assistant", "content": "Gu"}),
            ollama({"role": "assistant", "content": "ten Tag"}),
            ollama(ROLE, "stop"),
            event({"choices": [], **usage(26, 5)}),
            DONE,
        ),
        "ollama/ollama openai/openai.go, middleware/openai.go",
        text="Guten Tag",
        usage=(26, 5),
    ),
    Sent(
        "ollama",
        "reasoning beside empty content",
        (
            ollama({**ROLE, "reasoning": "We"}),
            ollama({**ROLE, "reasoning": " need an answer."}),
            ollama({"role": "assistant", "content": "Four."}),
            ollama(ROLE, "stop"),
            DONE,
        ),
        "dirac-run/dirac pull 227",
        text="Four.",
    ),
    Sent(
        "ollama",
        "an empty pair of tags before the answer",
        (
            ollama({"role": "assistant", "content": "<think>"}),
            ollama({"role": "assistant", "content": "\n\n"}),
            ollama({"role": "assistant", "content": "</think>"}),
            ollama({"role": "assistant", "content": "\n\nFour."}),
            ollama(ROLE, "stop"),
            DONE,
        ),
        "ollama/ollama issue 10496",
        text="Four.",
    ),
    Sent(
        "ollama",
        "two calls, whole, both numbered 0",
        (
            ollama(tools(function("read_file", AT_NOTES, index=0, id="call_1"), **ROLE)),
            ollama(tools(function("read_file", AT_DIARY, index=0, id="call_2"), **ROLE)),
            ollama(ROLE, "tool_calls"),
            DONE,
        ),
        "ollama/ollama issue 15457",
        calls=(READ_NOTES, READ_DIARY),
        finish="tool_calls",
    ),
    Sent(
        "ollama",
        "a call without a number, finish stop",
        (
            ollama(tools(function("read_file", AT_NOTES, id="call_1"), **ROLE)),
            ollama(ROLE, "stop"),
            DONE,
        ),
        "ollama/ollama issue 7881",
        calls=(READ_NOTES,),
    ),
    Sent(
        "ollama",
        "a whole answer with a call",
        whole(
            tools(function("read_file", AT_NOTES, index=0, id="call_1"), content=""),
            "tool_calls",
            system_fingerprint="fp_ollama",
            **usage(165, 21),
        ),
        "ollama/ollama openai/openai.go, ToChatCompletion",
        calls=(READ_NOTES,),
        finish="tool_calls",
        usage=(165, 21),
    ),
    Sent(
        "ollama",
        "the call of a model without a parser",
        (
            *(
                ollama({"role": "assistant", "content": piece})
                for piece in ("<tool_call>", "\n", '{"', "name", '": "read_file", "argu')
            ),
            ollama({"role": "assistant", "content": f'ments": {AT_NOTES}}}\n</tool_call>'}),
            ollama(ROLE, "stop"),
            DONE,
        ),
        "ollama/ollama pull 5915",
        calls=(READ_NOTES,),
    ),
    Sent(
        "ollama",
        "the runner dies: a part without anything, and the end",
        (
            ollama({"role": "assistant", "content": "Once upon a time"}),
            event({"id": "chatcmpl-518", "model": "", "choices": [{"index": 0, "delta": ROLE}]}),
        ),
        "ollama/ollama middleware/openai.go, writeResponse reads {error: ...} as an answer",
        text="Once upon a time",
        finish="eof",
    ),
    Sent(
        "ollama",
        "no such model",
        error('model "q" not found, try pulling it first', type="not_found_error", code=None),
        "netease-youdao/QAnything issue 555",
        status=404,
        failure=Refused,
    ),
    Sent(
        "ollama",
        "a model without tools",
        error(
            "registry.ollama.ai/library/q:4b does not support tools", type="api_error", code=None
        ),
        "FoundationAgents/OpenManus issue 220",
        status=400,
        failure=Refused,
    ),
    Sent(
        "ollama",
        "the runner died before it said anything",
        error("an error was encountered while running the model: unexpected EOF", type="api_error"),
        "continuedev/continue issue 12843",
        status=500,
        failure=Outage,
    ),
)

vllm = partial(chunk, {"id": "chatcmpl-9f", "created": 1, "model": "org/q"})
VLLM = (
    Sent(
        "vllm",
        "text; usage in each part, then alone",
        (
            vllm(ROLE, logprobs=None),
            vllm({"content": "Good"}, logprobs=None, token_ids=None),
            vllm({"content": " day"}, logprobs=None, token_ids=None),
            vllm({"content": ""}, "stop", logprobs=None, stop_reason=None),
            event({"choices": [], **usage(16, 3)}),
            DONE,
        ),
        "vllm-project/vllm pull 45678",
        text="Good day",
        usage=(16, 3),
    ),
    Sent(
        "vllm",
        "reasoning in one field or the other, then text",
        (
            vllm({"role": "assistant", "content": ""}),
            vllm({"reasoning": "One and one", "reasoning_content": "One and one"}),
            vllm({"reasoning_content": " is two."}),
            vllm({"content": "Two."}),
            vllm({"content": ""}, "stop", stop_reason=None),
            DONE,
        ),
        "BerriAI/litellm pull 24019",
        text="Two.",
    ),
    Sent(
        "vllm",
        "two calls, both numbered 0, later parts with an empty id",
        (
            vllm(tools(function("read_file", "", index=0, id="chatcmpl-tool-a"))),
            vllm(tools(function(None, '{"path": "notes', index=0, id=""))),
            vllm(tools(function(None, '.txt"}', index=0, id=""))),
            vllm(tools(function("read_file", "", index=0, id="chatcmpl-tool-b"))),
            vllm(tools(function(None, AT_DIARY, index=0, id=""))),
            vllm({"content": ""}, "tool_calls", stop_reason=None),
            DONE,
        ),
        "InternLM/lmdeploy issue 3412",
        calls=(READ_NOTES, READ_DIARY),
        finish="tool_calls",
    ),
    Sent(
        "vllm",
        "a call whose arguments never come",
        (
            vllm(tools(function("done", None, index=0, id="chatcmpl-tool-a"))),
            vllm({"content": ""}, "tool_calls"),
            DONE,
        ),
        "vllm-project/vllm issue 11392",
        calls=(("done", {}),),
        finish="tool_calls",
    ),
    Sent(
        "vllm",
        "the hermes parser lets a call through as text",
        (
            *(
                vllm({"content": piece})
                for piece in ("<tool_call>", "\n", '{"', "name", '": "', "read_file")
            ),
            vllm({"content": f'", "arguments": {AT_NOTES}}}\n'}),
            vllm({"content": "</tool_call>"}),
            vllm({"content": ""}, "stop"),
            DONE,
        ),
        "vllm-project/vllm issue 28297",
        calls=(READ_NOTES,),
    ),
    Sent(
        "vllm",
        "cut by length in the middle of reasoning",
        (
            vllm({"reasoning": "Let me see"}),
            vllm({"content": ""}, "length"),
            event({"choices": [], **usage(8, 16)}),
            DONE,
        ),
        "CherryHQ/stella issue 1081",
        finish="length",
        usage=(8, 16),
    ),
    Sent(
        "vllm",
        "the engine gives up, as if it were an end",
        (vllm({"content": "Once upon"}), vllm({}, "abort"), DONE),
        "vllm-project/vllm issue 57082",
        failure=Outage,
    ),
    Sent(
        "vllm",
        "an error in the stream",
        (vllm({"content": "Once"}), event(error("EngineCore broke", code=500)), DONE),
        "vllm-project/guidellm issue 743",
        failure=Outage,
    ),
    Sent(
        "vllm",
        "an error in the stream, without a field of its own",
        (vllm({"content": "Once"}), event({"object": "error", "message": "gone", "code": 500})),
        "langchain4j/langchain4j issue 3475 (has the shape as a body)",
        failure=Outage,
    ),
    Sent(
        "vllm",
        "too large, the older shape",
        {
            "object": "error",
            "message": "This model's maximum context length is 16384 tokens. However, you requested"
            " 122946 tokens (112946 in the messages, 10000 in the completion).",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
        "meta-llama/llama-verifications issue 58",
        status=400,
        failure=TooLarge,
    ),
    Sent(
        "vllm",
        "too large, the newer shape",
        error(
            "This model's maximum context length is 2048 tokens. However, your request has 8 input"
            " tokens plus 2045 'max_tokens'. (parameter=input_tokens, value=(8, 2045))",
            type="BadRequestError",
            code=400,
        ),
        "vllm-project/vllm pull 33425",
        status=400,
        failure=TooLarge,
    ),
    Sent(
        "vllm",
        "tools without a parser",
        {
            "object": "error",
            "message": '"auto" tool choice requires --enable-auto-tool-choice and'
            " --tool-call-parser to be set",
            "type": "BadRequestError",
            "code": 400,
        },
        "langchain4j/langchain4j issue 3475",
        status=400,
        failure=Refused,
    ),
    Sent(
        "sglang",
        "calls with numbers for ids, repeated",
        (
            vllm(tools(function("read_file", "", index=0, id="0"))),
            vllm(tools(function(None, AT_NOTES, index=0, id="0"))),
            vllm(tools(function("read_file", "", index=0, id="1"))),
            vllm(tools(function(None, AT_DIARY, index=0, id="1"))),
            vllm({}, "tool_calls", matched_stop=None),
            DONE,
        ),
        "InternLM/lmdeploy issue 3412",
        calls=(READ_NOTES, READ_DIARY),
        finish="tool_calls",
    ),
)

studio = partial(chunk, {"id": "chatcmpl-s", "created": 1, "model": "q", "system_fingerprint": "q"})
STUDIO = (
    Sent(
        "lm studio",
        "a call whose later parts have an empty name",
        (
            studio({"role": "assistant", "content": "<think>"}, logprobs=None),
            studio({"content": "\n\n"}, logprobs=None),
            studio({"content": "</think>"}, logprobs=None),
            studio(tools(function("read_file", "", index=0, id="365174485"))),
            studio(tools(function("", '{"path":', index=0))),
            studio(tools(function("", '"notes.txt"}', index=0))),
            studio({}, "tool_calls"),
            DONE,
        ),
        "lmstudio-ai/lmstudio-bug-tracker issue 649",
        calls=(READ_NOTES,),
        finish="tool_calls",
    ),
    Sent(
        "lm studio",
        "a call without a function beside text",
        whole({"content": "The file is made.", "tool_calls": [{"id": "", "type": "function"}]}),
        "lmstudio-ai/lmstudio-bug-tracker issue 830",
        text="The file is made.",
    ),
    Sent(
        "lm studio",
        "nothing at all where a call was required",
        whole({"content": "", "tool_calls": None}),
        "lmstudio-ai/lmstudio-bug-tracker issue 1904",
        failure=Empty,
    ),
    Sent(
        "lm studio",
        "an error as an event",
        (
            "event: error",
            event(
                error(
                    "The number of tokens to keep from the initial prompt is greater than the"
                    " context length. Try to load the model with a larger context length"
                )
            ),
        ),
        "lmstudio-ai/lmstudio-bug-tracker issue 2205",
        failure=TooLarge,
    ),
    Sent(
        "lm studio",
        "too large, as text",
        {"error": "Cannot truncate prompt with n_keep (4270) >= n_ctx (4096)"},
        "continuedev/continue issue 11279",
        status=400,
        failure=TooLarge,
    ),
    Sent(
        "lm studio",
        "an address without /v1",
        {"error": "Unexpected endpoint or method. (POST /chat/completions)"},
        "lmstudio-ai/lms issue 169 (with status 200)",
        failure=Outage,
    ),
    Sent(
        "lm studio",
        "a choice of tools it does not know",
        {"error": "Invalid tool_choice type: 'object'. Supported values: none, auto, required"},
        "can1357/oh-my-pi issue 6925",
        status=400,
        failure=Refused,
    ),
)

LOCAL = (*LLAMA, *OLLAMA, *VLLM, *STUDIO)
