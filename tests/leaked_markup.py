"""Markup of templates that servers leave in what a model says: as `tests.servers`, its third part."""

from tests.servers import AT_NOTES, DONE, READ_NOTES, Sent, studio, vllm, whole
from wintermute.llm.failures import Empty

LEAKED = (
    Sent(
        "vllm",
        "qwen3-coder's own form of a call, without its parser",
        (
            vllm({"content": "<tool_call>\n<function=read_file>\n<para"}),
            vllm({"content": "meter=path>\nnotes.txt\n</parameter>\n</function>\n</tool_call>"}),
            vllm({"content": ""}, "stop"),
            DONE,
        ),
        "ggml-org/llama.cpp pull 15162",
        calls=(READ_NOTES,),
    ),
    Sent(
        "vllm",
        "mistral's calls as text, a list",
        (
            vllm({"content": '[TOOL_CALLS] [{"name": "read_file", "argu'}),
            vllm({"content": f'ments": {AT_NOTES}}}]'}),
            vllm({"content": ""}, "stop"),
            DONE,
        ),
        "ml-explore/mlx-lm issue 1374",
        calls=(READ_NOTES,),
    ),
    Sent(
        "vllm",
        "mistral's call as text, by name and arguments",
        (
            vllm({"content": "[TOOL_CALLS]read_file[ARGS]"}),
            vllm({"content": AT_NOTES}),
            vllm({"content": ""}, "stop"),
            DONE,
        ),
        "ml-explore/mlx-lm issue 1374",
        calls=(READ_NOTES,),
    ),
    Sent(
        "vllm",
        "harmony's call as text",
        whole(
            {
                "content": "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant"
                "<|channel|>commentary to=functions.read_file <|constrain|>json<|message|>"
                f"{AT_NOTES}<|call|>",
                "refusal": None,
                "tool_calls": [],
                "reasoning_content": None,
            }
        ),
        "waybarrios/vllm-mlx pull 50",
        calls=(READ_NOTES,),
    ),
    Sent(
        "tensorrt-llm",
        "a harmony channel without a recipient and nothing else",
        whole({"content": '<|channel|>commentary<|message|>{"path": "/"}<|end|>'}),
        "NVIDIA/TensorRT-LLM issue 9256",
        failure=Empty,
    ),
    Sent(
        "lm studio",
        "a required call in a form it did not read",
        whole({"content": "<tool_call>\n<function=done>\n</function>\n</tool_call>"}),
        "lmstudio-ai/lmstudio-bug-tracker issue 2115",
        calls=(("done", {}),),
    ),
    Sent(
        "lm studio",
        "glm's form of a call",
        whole(
            {
                "content": "<tool_call>read_file<arg_key>path</arg_key>"
                "<arg_value>notes.txt</arg_value></tool_call>"
            }
        ),
        "lmstudio-ai/lmstudio-bug-tracker issue 1528",
        calls=(READ_NOTES,),
    ),
    Sent(
        "lm studio",
        "lfm's form of a call",
        whole({"content": '<|tool_call_start|>[read_file(path="a")]<|tool_call_end|>'}),
        "lmstudio-ai/lmstudio-bug-tracker issue 1979",
        calls=(("read_file", {"path": "a"}),),
    ),
    Sent(
        "lm studio",
        "gemma 4's channels, whose tokens are not harmony's",
        (
            studio({"role": "assistant", "content": "<|chan"}),
            studio({"content": "nel>thought\nThey greet.\n<chan"}),
            studio({"content": "nel|>Hello"}),
            studio({}, "stop"),
            DONE,
        ),
        "lmstudio-ai/lmstudio-bug-tracker issue 2013",
        text="Hello",
    ),
)
