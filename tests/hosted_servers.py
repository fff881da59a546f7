"""What hosted services send: as `tests.servers`, its second part."""

from functools import partial

from tests.servers import (
    AT_DIARY,
    AT_NOTES,
    DONE,
    READ_DIARY,
    READ_NOTES,
    ROLE,
    Sent,
    chunk,
    error,
    event,
    function,
    rest,
    tools,
    usage,
    whole,
)
from wintermute.llm.failures import Disallowed, Empty, Outage, Refused, TooLarge
from wintermute.messages import Json

router = partial(chunk, {"id": "gen-17", "provider": "Some", "model": "a/b", "created": 1})
ROUTER = (
    Sent(
        "openrouter",
        "text after comments; usage with costs at the end",
        (
            ": OPENROUTER PROCESSING",
            ": OPENROUTER PROCESSING",
            router({"role": "assistant", "content": "Hel"}, native_finish_reason=None),
            ": OPENROUTER PROCESSING",
            router({"role": "assistant", "content": "lo"}, native_finish_reason=None),
            router(ROLE, "stop", native_finish_reason="STOP", logprobs=None),
            event({"choices": [{"index": 0, "delta": ROLE}], **usage(7, 2, cost=0.0001)}),
            DONE,
        ),
        "openrouter.ai/docs/api-reference/streaming",
        text="Hello",
        usage=(7, 2),
    ),
    Sent(
        "openrouter",
        "reasoning and its details",
        (
            router({**ROLE, "reasoning": "So I need", "reasoning_details": []}),
            router(
                {
                    **ROLE,
                    "reasoning": " two.",
                    "reasoning_details": [{"type": "reasoning.text", "text": " two.", "index": 0}],
                }
            ),
            router({"role": "assistant", "content": "Two."}),
            router(ROLE, "stop", native_finish_reason="completed"),
            DONE,
        ),
        "huggingface/responses.js pull 19",
        text="Two.",
    ),
    Sent(
        "openrouter",
        "an error in the middle, beside a choice",
        (
            router({"role": "assistant", "content": "Once upon"}),
            event(
                {
                    "id": "gen-17",
                    **error("Provider disconnected", code=502),
                    "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}],
                }
            ),
        ),
        "openrouter.ai/docs/api/reference/streaming; damianvtran/local-operator pull 223",
        failure=Outage,
    ),
    Sent(
        "openrouter",
        "an end by error without a word about it",
        (router({"content": "Once"}), router(ROLE, "error"), DONE),
        "gethouston/houston pull 1211",
        failure=Outage,
    ),
    Sent(
        "openrouter",
        "an error with status 200, with the reason below",
        error(
            "Provider returned error",
            code=429,
            metadata={"raw": "a/b is rate-limited upstream", "provider_name": "Some"},
        ),
        "open-webui/computer issue 293",
        failure=Outage,
    ),
    Sent(
        "openrouter",
        "no credits",
        error("Insufficient credits. Add more to go on", code=402),
        "openrouter.ai/docs/api/reference/errors-and-debugging",
        status=402,
        failure=Refused,
    ),
    Sent(
        "openrouter",
        "no provider left",
        error("No provider meets your routing requirements", code=503),
        "openrouter.ai/docs/api/reference/errors-and-debugging",
        status=503,
        failure=Outage,
    ),
)

OPENAI_FRAME: Json = {"id": "chatcmpl-B", "created": 1, "model": "gpt-x", "service_tier": "default"}
openai = partial(chunk, {**OPENAI_FRAME, "system_fingerprint": "fp_1", "usage": None})
OPENAI = (
    Sent(
        "openai",
        "text; usage null in each part, then alone",
        (
            openai({**ROLE, "refusal": None}, logprobs=None),
            openai({"content": "Hel"}, logprobs=None),
            openai({"content": "lo"}, logprobs=None),
            openai({}, "stop", logprobs=None),
            event({**OPENAI_FRAME, "choices": [], **usage(9, 2)}),
            DONE,
        ),
        "platform.openai.com/docs/api-reference/chat-streaming",
        text="Hello",
        usage=(9, 2),
    ),
    Sent(
        "openai",
        "two calls, the head of the first with the role",
        (
            openai(
                tools(
                    function("read_file", "", index=0, id="call_a"),
                    role="assistant",
                    content=None,
                    refusal=None,
                )
            ),
            openai(tools(rest('{"path": "not'))),
            openai(tools(rest('es.txt"}'))),
            openai(tools(function("read_file", "", index=1, id="call_b"))),
            openai(tools(rest(AT_DIARY, 1))),
            openai({}, "tool_calls"),
            DONE,
        ),
        "lmstudio-ai/lmstudio-bug-tracker issue 445 (OpenAI's beside LM Studio's)",
        calls=(READ_NOTES, READ_DIARY),
        finish="tool_calls",
    ),
    Sent(
        "openai",
        "a refusal in parts",
        (
            openai({"role": "assistant", "content": None, "refusal": ""}),
            openai({"refusal": "I cannot help"}),
            openai({"refusal": " with that."}),
            openai({}, "stop"),
            DONE,
        ),
        "anomalyco/opencode pull 43343",
        text="I cannot help with that.",
        finish="refusal",
    ),
    Sent(
        "openai",
        "a refusal as a whole",
        whole({"content": None, "refusal": "I cannot help with that.", "annotations": []}),
        "openclaw/openclaw pull 102334",
        text="I cannot help with that.",
        finish="refusal",
    ),
    Sent(
        "openai",
        "text cut by length",
        (openai({**ROLE, "content": "One, two,"}), openai({}, "length"), DONE),
        "platform.openai.com/docs/api-reference/chat/object",
        text="One, two,",
        finish="length",
    ),
    Sent(
        "openai",
        "all of the room went into reasoning",
        whole(
            {"content": "", "refusal": None},
            "length",
            **usage(12, 64, completion_tokens_details={"reasoning_tokens": 64}),
        ),
        "platform.openai.com/docs/guides/reasoning",
        finish="length",
        usage=(12, 64),
    ),
    Sent(
        "openai",
        "an error in the stream",
        (
            openai({"content": "Once"}),
            event(error("The server had an error", type="server_error", param=None, code=None)),
        ),
        "openai/codex issue 37652",
        failure=Outage,
    ),
    Sent(
        "openai",
        "too large",
        error(
            "This model's maximum context length is 8192 tokens. However, your messages resulted in"
            " 9001 tokens.",
            type="invalid_request_error",
            param="messages",
            code="context_length_exceeded",
        ),
        "xtekky/gpt4free issue 137",
        status=400,
        failure=TooLarge,
    ),
    Sent(
        "openai",
        "no quota left",
        error("You exceeded your current quota", type="insufficient_quota", code=None),
        "platform.openai.com/docs/guides/error-codes",
        status=429,
        failure=Refused,
    ),
    Sent(
        "azure",
        "the filter's verdict first, without choices, and one more without a delta",
        (
            event(
                {
                    "id": "",
                    "model": "",
                    "object": "",
                    "choices": [],
                    "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": {}}],
                }
            ),
            openai(ROLE, content_filter_results={}),
            openai({"content": "Fine."}, content_filter_results={"hate": {"filtered": False}}),
            openai({}, "stop", content_filter_results={}),
            event(
                {
                    "id": "",
                    "choices": [
                        {
                            "index": 0,
                            "finish_reason": None,
                            "content_filter_results": {},
                            "content_filter_offsets": {"check_offset": 44},
                        }
                    ],
                    "usage": None,
                }
            ),
            DONE,
        ),
        "AbanteAI/archive-old-cli-mentat issue 429, microsoft/autogen issue 6465",
        text="Fine.",
    ),
    Sent(
        "azure",
        "a question that the filter does not let through",
        error(
            "The response was filtered due to the prompt",
            param="prompt",
            code="content_filter",
            status=400,
            innererror={"code": "ResponsibleAIPolicyViolation"},
        ),
        "compl-ai/compl-ai issue 20",
        status=400,
        failure=Disallowed,
    ),
    Sent(
        "azure",
        "text cut by the filter",
        (openai({**ROLE, "content": "It begins"}), openai({}, "content_filter"), DONE),
        "langchain-ai/langchain issue 18977",
        text="It begins",
        finish="content_filter",
    ),
)

gemini = partial(chunk, {"id": "x9d", "created": 1, "model": "gemini-x"})
SIGNED: Json = {"extra_content": {"google": {"thought_signature": "EjQKMg=="}}}
GEMINI = (
    Sent(
        "gemini",
        "text; finish and usage in the last part",
        (
            gemini({"role": "assistant", "content": "Hel"}),
            gemini({"role": "assistant", "content": "lo"}, "stop"),
            event({"choices": [], **usage(6, 2)}),
            DONE,
        ),
        "ai.google.dev/gemini-api/docs/openai",
        text="Hello",
        usage=(6, 2),
    ),
    Sent(
        "gemini",
        "a call without a number, signed, finish stop",
        (
            gemini(tools(function("read_file", AT_NOTES, id="jm4", **SIGNED), role="assistant")),
            gemini(ROLE, "stop"),
            DONE,
        ),
        "noho/dayu-agent issue 45, googleapis/python-genai issue 2868",
        calls=(READ_NOTES,),
    ),
    Sent(
        "gemini",
        "two calls of one tool, one a part, numbered 0, without ids",
        (
            gemini(tools(function("read_file", AT_NOTES, index=0, id=""), role="assistant")),
            gemini(tools(function("read_file", AT_DIARY, index=0, id=""), role="assistant")),
            gemini(ROLE, "stop"),
            DONE,
        ),
        "su-kaka/gcli2api pull 406, microclaw/microclaw pull 230",
        calls=(READ_NOTES, READ_DIARY),
    ),
    Sent(
        "gemini",
        "two calls in one part, both numbered 0, without ids",
        (
            gemini(
                tools(
                    function("read_file", AT_NOTES, index=0, id=""),
                    function("done", '{"answer": "so"}', index=0, id=""),
                )
            ),
            gemini(ROLE, "stop"),
            DONE,
        ),
        "su-kaka/gcli2api pull 406",
        calls=(READ_NOTES, ("done", {"answer": "so"})),
    ),
    Sent(
        "gemini",
        "two calls of one tool in parts of their own, without numbers and ids",
        (
            gemini(tools(function("read_file", AT_NOTES, id=""))),
            gemini(tools(function("read_file", AT_DIARY, id=""))),
            gemini(ROLE, "stop"),
            DONE,
        ),
        "microclaw/microclaw pull 230",
        calls=(READ_NOTES, READ_DIARY),
    ),
    Sent(
        "gemini",
        "a gateway that says stop in each part",
        (
            gemini({"reasoning_content": "Hm"}, "stop"),
            gemini({"content": "Good"}, "stop"),
            gemini({"content": " day"}, "stop"),
            DONE,
        ),
        "QuantumNous/new-api issue 378, su-kaka/gcli2api issue 403",
        text="Good day",
    ),
    Sent(
        "gemini",
        "its own word for length",
        (gemini({"content": "One, two,"}), gemini({}, "MAX_TOKENS"), DONE),
        "ai.google.dev/api/generate-content, FinishReason; gateways pass it on",
        text="One, two,",
        finish="length",
    ),
    Sent(
        "gemini",
        "its own word for the filter, and no text",
        (gemini({"role": "assistant"}, "SAFETY"), DONE),
        "ai.google.dev/api/generate-content, FinishReason; gateways pass it on",
        finish="content_filter",
    ),
    Sent(
        "gemini",
        "blocked: a whole answer without text",
        whole({"content": None}, "content_filter", **usage(8175, 0)),
        "BerriAI/litellm pull 20105",
        finish="content_filter",
        usage=(8175, 0),
    ),
    Sent(
        "gemini",
        "a call it made a mess of",
        (gemini({"role": "assistant"}, "MALFORMED_FUNCTION_CALL"), DONE),
        "google-gemini/gemini-cli issue 12674",
        failure=Empty,
    ),
    Sent(
        "gemini",
        "too large, in a list",
        [
            error(
                "The input token count (134123) exceeds the maximum number of tokens allowed"
                " (131072).",
                code=400,
                status="INVALID_ARGUMENT",
            )
        ],
        "google-gemini/gemini-cli issue 12214",
        status=400,
        failure=TooLarge,
    ),
    Sent(
        "gemini",
        "a wrong key, in a list",
        [error("API key not valid. Please pass a valid one.", code=400, status="INVALID_ARGUMENT")],
        "continuedev/continue issue 10530",
        status=400,
        failure=Refused,
    ),
    Sent(
        "gemini",
        "overloaded, in a list",
        [error("The model is overloaded.", code=503, status="UNAVAILABLE")],
        "google-gemini/gemini-cli issue 3859 (the list)",
        status=503,
        failure=Outage,
    ),
)

mistral = partial(chunk, {"id": "cmpl-82", "created": 1, "model": "mistral-x"})
OTHERS = (
    Sent(
        "mistral",
        "thinking and text as lists of parts",
        (
            mistral(ROLE),
            mistral(
                {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Okay"}]}]}
            ),
            mistral({"content": [{"type": "text", "text": "The sum"}]}),
            mistral({"role": None, "content": " is two."}),
            mistral({"content": ""}, "stop"),
            DONE,
        ),
        "agentjido/req_llm issue 742, NousResearch/hermes-agent issue 11243",
        text="The sum is two.",
    ),
    Sent(
        "mistral",
        "a whole call with the finish",
        (
            mistral(ROLE),
            mistral(
                tools(function("read_file", AT_NOTES, index=0, id="D681PevKs"), content=""),
                "tool_calls",
            ),
            DONE,
        ),
        "suitenumerique/conversations pull 51",
        calls=(READ_NOTES,),
        finish="tool_calls",
    ),
    Sent(
        "mistral",
        "its own word for length",
        (mistral({"content": "One, two,"}), mistral({"content": ""}, "model_length"), DONE),
        "docs.mistral.ai/api, finish_reason",
        text="One, two,",
        finish="length",
    ),
    Sent(
        "mistral",
        "a field it does not know",
        {
            "object": "error",
            "message": {
                "detail": [
                    {
                        "type": "extra_forbidden",
                        "loc": ["body", "parallel_tool_calls"],
                        "msg": "Extra inputs are not permitted",
                    }
                ]
            },
            "type": "invalid_request_error",
            "code": None,
        },
        "editor-code-assistant/eca issue 231",
        status=422,
        failure=Refused,
    ),
    Sent(
        "deepseek",
        "comments while it waits, reasoning_content, text",
        (
            ": keep-alive",
            ": keep-alive",
            openai({"role": "assistant", "content": None, "reasoning_content": ""}),
            openai({"content": None, "reasoning_content": "They greet."}),
            openai({"content": "Hello", "reasoning_content": None}),
            openai({"content": "", "reasoning_content": None}, "stop"),
            DONE,
        ),
        "api-docs.deepseek.com/quick_start/rate_limit",
        text="Hello",
    ),
    Sent(
        "deepseek",
        "empty lines before a whole answer",
        "\n\n\n\n"
        '{"choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}]}',
        "api-docs.deepseek.com/quick_start/rate_limit",
        text="Hello",
    ),
    Sent(
        "deepseek",
        "interrupted for want of resources",
        (openai({"content": "Once"}), openai({}, "insufficient_system_resource"), DONE),
        "api-docs.deepseek.com/api/create-chat-completion, finish_reason",
        failure=Outage,
    ),
    Sent(
        "deepseek",
        "a tool_choice it does not take while it thinks",
        error("Thinking mode does not support this tool_choice", type="invalid_request_error"),
        "deepseek-ai/DeepSeek-V3 issue 1376",
        status=400,
        failure=Refused,
    ),
    Sent(
        "groq",
        "text; usage in a field of its own as well",
        (
            event(
                {"x_groq": {"id": "req_1"}, "choices": [{"index": 0, "delta": ROLE}], "usage": None}
            ),
            openai({"content": "Hello"}),
            event(
                {
                    "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
                    "x_groq": {"id": "req_1", **usage(40, 1)},
                }
            ),
            DONE,
        ),
        "console.groq.com/docs/api-reference",
        text="Hello",
    ),
    Sent(
        "groq",
        "a call that its parser could not read, which the model may get right next time",
        error(
            "Failed to call a function. See 'failed_generation' for more details.",
            type="invalid_request_error",
            code="tool_use_failed",
            failed_generation='<function=read_file={"path": "notes.txt"}</function>',
        ),
        "tashfeenahmed/freellmapi pull 291",
        status=400,
        failure=Outage,
    ),
    Sent(
        "bedrock gateway",
        "reasoning_content that is an object",
        (
            openai(ROLE),
            openai({"role": "assistant", "reasoning_content": {"text": "I nee"}}),
            openai({"content": "Two."}),
            openai({}, "stop"),
            DONE,
        ),
        "envoyproxy/ai-gateway pull 1222",
        text="Two.",
    ),
    Sent(
        "z.ai",
        "the network behind it broke",
        (openai({"content": "Once"}), openai({}, "network_error"), DONE),
        "gethouston/houston pull 1211, anomalyco/opencode issue 44358",
        failure=Outage,
    ),
    Sent(
        "zen",
        "a filter's own word",
        (openai({"content": "It begins"}), openai({}, "sensitive"), DONE),
        "anomalyco/opencode issue 44092",
        text="It begins",
        finish="content_filter",
    ),
    Sent(
        "cerebras",
        "a thinking model whose template opened the tag",
        (
            openai({"content": "They greet.\n</th"}),
            openai({"content": "ink>\n\nHello"}),
            openai({}, "stop"),
            DONE,
        ),
        "Cerebras/cerebras-cloud-sdk-python issue 10",
        text="Hello",
    ),
    Sent(
        "a gateway",
        "neither a finish nor [DONE]",
        (openai({"content": "All of"}), openai({"content": " it."})),
        "vaadin/flow-components commit b88af58, anomalyco/opencode issue 39968",
        text="All of it.",
        finish="eof",
    ),
    Sent(
        "a gateway",
        "neither a finish nor [DONE], in the middle of a call",
        (openai(tools(function("read_file", '{"path": "no', index=0, id="call_a"))),),
        "anomalyco/opencode issue 39968",
        failure=Outage,
    ),
    Sent(
        "a gateway",
        "neither a finish nor [DONE], after the head of a call",
        (openai(tools(function("read_file", "", index=0, id="call_a"))),),
        "anomalyco/opencode issue 39968",
        failure=Outage,
    ),
    Sent(
        "a gateway",
        "neither a finish nor [DONE] nor text",
        (openai(ROLE),),
        "ranxianglei/billion-context-omp issue 105",
        failure=Outage,
    ),
)

HOSTED = (*ROUTER, *OPENAI, *GEMINI, *OTHERS)
