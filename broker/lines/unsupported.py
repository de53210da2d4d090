"""Parameters that we know, but do not honour yet: refused by name, never ignored.

A request that asks for something gets it or is told that it will not. Each parameter has its neutral
values, which ask for nothing and pass; `null` is always one. Parameters that no API of this family knows
are ignored, and so are hints that change no answer (`user`, `metadata`, `service_tier`, …).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.broker.lines.refused import Refused

Neutral = Mapping[str, Sequence[object]]

# Neither depends on the endpoint: the first block is OpenAI's, the second of servers such as vLLM.
_COMMON: Neutral = {
    "stream_options": (),
    #
    "add_special_tokens": (True,),
    "allowed_token_ids": (),
    "grammar": (),
    "guided_whitespace_pattern": (),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "repetition_detection": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "structural_tag": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}
_CHAT: Neutral = {
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
    #
    "add_generation_prompt": (True,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "include_reasoning": (True,),
    "thinking_token_budget": (),
}
_COMPLETION: Neutral = {
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "prompt_embeds": (),
}
_EMBEDDING: Neutral = {
    "add_special_tokens": (True,),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "messages": (),
    "normalize": (),
    "truncate_prompt_tokens": (),
}
NEUTRAL: Mapping[str, Neutral] = {
    "/v1/chat/completions": {**_COMMON, **_CHAT},
    "/v1/completions": {**_COMMON, **_COMPLETION},
    "/v1/embeddings": _EMBEDDING,
}


def refuse_unsupported(endpoint: str, body: Mapping[str, object]) -> None:
    """Raises `Refused` for the first parameter of `body` that asks for what we do not do."""
    if body.get("stream") not in (None, False):
        raise Refused(
            "streaming_unsupported",
            "stream must be false in a body: queued answers arrive whole (to stream, use the gateway, or the "
            "message's own field `stream` with `reply-to`)",
            "stream",
        )
    known = NEUTRAL[endpoint]
    for name, value in body.items():
        if name in known and not _is_neutral(value, known[name]):
            raise Refused("unsupported_parameter", f"{name} is not supported yet; leave it out", name)


def _is_neutral(value: object, neutral: Sequence[object]) -> bool:
    """Compares like JSON: `1` equals `1.0`, but `true` is not `1`."""
    return value is None or any(
        value == other and isinstance(value, bool) == isinstance(other, bool) for other in neutral
    )
