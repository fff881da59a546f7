"""The tokens between which chat templates write calls, as data (F-044): one row per template."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Form:
    """One way to write a call as text.

    `ends`: the marks that close it. `is_text`: it is shown if it is no call. `is_part`: the opening
    mark is part of the call's text. `name`: the tool, if the mark names it.
    """

    ends: tuple[str, ...]
    is_text: bool = False
    is_part: bool = False
    name: str = ""


NEVER = ("\0",)
FORMS = {
    "<tool_call>": Form(("</tool_call>",)),  # Qwen, Hermes, GLM
    "<|tool_call|>": Form(("<|/tool_call|>", "<|end|>")),  # Phi
    "<function=": Form(("</function>",), is_text=True, is_part=True),  # Qwen-Coder, Llama
    "<|tool_call_start|>": Form(("<|tool_call_end|>",)),  # LFM2
    "<|tool_call>": Form(("<tool_call|>",)),  # Gemma 4
    "<start_function_call>": Form(("<end_function_call>",)),  # FunctionGemma
    "<\uff5ctool\u2581calls\u2581begin\uff5c>": Form(("<\uff5ctool\u2581calls\u2581end\uff5c>",)),
    "<\uff5cdsml\uff5cfunction_calls>": Form(("</\uff5cdsml\uff5cfunction_calls>",)),  # DeepSeek
    "<\uff5cdsml\uff5ctool_calls>": Form(("</\uff5cdsml\uff5ctool_calls>",)),
    "<minimax:tool_call>": Form(("</minimax:tool_call>",)),
    "]<]minimax[>[<tool_call>": Form(("]<]minimax[>[</tool_call>",)),
    "<|tool_calls_section_begin|>": Form(("<|tool_calls_section_end|>",)),  # Kimi
    "<|tool_call_begin|>": Form(("<|tool_call_end|>",)),
    "[tool_calls]": Form(("[tool_calls]", "</s>")),  # Mistral
    "<|python_tag|>": Form(("<|eom_id|>", "<|eot_id|>")),  # Llama
    "<|start_action|>": Form(("<|end_action|>",)),  # Command R7B
    "<toolcall>": Form(("</toolcall>",)),  # Nemotron Nano
    "<|tools_prefix|>": Form(("<|tools_suffix|>",)),  # Apertus
    "<seed:tool_call>": Form(("</seed:tool_call>",)),
    "<tool_calls>": Form(("</tool_calls>",), is_text=True),  # Apriel
    "<function_calls>": Form(("</function_calls>",), is_text=True),
}
BARE = Form(NEVER, is_text=True, is_part=True)
SPELLED = {"{": BARE, "[{": BARE}
"""Bare JSON up to the end of the answer: only for models that are known to write calls so."""
FENCE = Form(NEVER, is_text=True)
"""Gemma's fence, `tool_code`: a quotation unless it ends the answer."""
PREFIXES = ("functions.", "default_api.", "tool.", "tools.")
LEAKED = re.compile(r"<\|.*|:\d+\Z|\.call\Z", re.DOTALL)
"""Template tokens at the end of a name."""
UNWANTED = ("\uff5cDSML\uff5c", "]<]minimax[>[")
"""Meaningless parts of tags."""
_NAME = r"([\w.-]+)"
NAMED = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        rf"(?:<\|tool_call_begin\|>)?\s*{_NAME}(?::\d+)?\s*<\|tool_call_argument_begin\|>"
        r"(.*?)(?:<\|tool_call_end\|>|\Z)\s*",
        rf"<\uff5ctool\u2581call\u2581begin\uff5c>(?:function<\uff5ctool\u2581sep\uff5c>)?{_NAME}\s*+"
        r"(?:<\uff5ctool\u2581sep\uff5c>)?(.*?)<\uff5ctool\u2581call\u2581end\uff5c>\s*",
        rf"{_NAME}\s*+(?:\[CALL_ID\][\w-]*)?(?:\[ARGS\]\s*+)?(\{{.*)",
        rf"<function={_NAME}[>=]\s*(\{{.*?)</function>\s*",
    )
)
"""Patterns of a name and the JSON of its arguments."""
ELEMENT = re.compile(
    rf'<(?:function=|invoke name="){_NAME}"?>(.*?)</(?:function|invoke)>\s*', re.DOTALL
)
GLM = re.compile(rf"{_NAME}\s*+(<arg_key>.*)", re.DOTALL)
CALL = re.compile(rf"call:{_NAME}\s*+(\{{.*)", re.DOTALL)
GEMMA = re.compile(
    r'(?:<\|"\|>|<escape>)(.*?)(?:<\|"\|>|<escape>)|([{,]\s?)?(?<![\w.-])([A-Za-z_][\w.-]*+):',
    re.DOTALL,
)
"""A pattern of a text between tokens, or of a key without quotation marks."""
VALUES = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        rf'<parameter(?:=| name="){_NAME}"?(?: string="\w+")?>\n?(.*?)\n?</parameter>\s*',
        rf"<arg_key>{_NAME}</arg_key>\s*<arg_value>(.*?)</arg_value>\s*",
        r"<(?P<key>[\w-]+)>(?P<value>.*?)</(?P=key)>\s*",
    )
)
"""Patterns of single arguments without quotation marks."""
PYTHON = re.compile(
    r"""("(?:[^"\\]|\\.)*(?:"|\Z)|'(?:[^'\\]|\\.)*(?:'|\Z))"""
    r"|(?<![\w.])([\w.]++)\s*+([(=])|(\))|\b(True|False|None)\b",
    re.DOTALL,
)
PRINTED = re.compile(r"^print\((.*)\)$", re.MULTILINE)
QUOTE = re.compile(r'\\.|"', re.DOTALL)
