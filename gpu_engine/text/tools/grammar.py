"""An answer that must be a call, as a grammar: the model's own format around the schemas of the tools.

start: call ("\\n" call)*
call: call_0 | call_1
call_0: "<tool_call>\\n{\\"name\\": \\"weather\\", \\"arguments\\": " arguments_0 "}\\n</tool_call>"
arguments_0: %json {"type": "object", …}
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from headrace.gpu_engine.text.tools.formats import CallFormat

# As models were taught to write it, and so that no answer can go on with spaces for ever.
_TIGHT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def call_grammar(
    call_format: CallFormat, tools: Mapping[str, Mapping[str, object]], *, parallel: bool
) -> str:
    """In llguidance's Lark. `tools`: schemas of the arguments by name, at least one. `parallel`: one call or
    more, in place of one."""
    style = call_format
    repeat = f"({_text(style.between)} call)*" if parallel else ""
    rules = [f"start: {_text(style.begin)} call {repeat} {_text(style.end)}"]
    rules.append("call: " + " | ".join(f"call_{i}" for i in range(len(tools))))
    for i, (name, schema) in enumerate(tools.items()):
        head = style.open + json.dumps(name)[1:-1] + style.key
        rules.append(f"call_{i}: {_text(head)} arguments_{i} {_text(style.close)}")
        rules.append(f"arguments_{i}: %json {json.dumps({**schema, 'x-guidance': _TIGHT})}")
    return "\n".join(rules)


def _text(text: str) -> str:
    return json.dumps(text) if text else ""
