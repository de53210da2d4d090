"""`InferenceRequest` messages to requests and back: the form that our own services speak.

A message goes through the same checks as a line of JSON. `request_id`, `lane` and `deadline` belong to
the envelope (`broker.message.Message`); they are neither read nor written here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from google.protobuf.message import DecodeError
from msgspec import structs

from headrace.broker.lines.openai import CHAT, COMPLETIONS, parse_body, read_custom_id
from headrace.broker.lines.refused import Refused, invalid
from headrace.broker.lines.request import Grammar, LineError, ParsedRequest, Sampling
from headrace.broker.lines.tools import Tool, Tools
from headrace.broker.lines.values import object_in_json
from headrace.v1 import inference_pb2 as pb


def parse_protobuf(raw: bytes) -> ParsedRequest | LineError:
    """Bytes of an `InferenceRequest`; `unreadable` where they are none."""
    try:
        message = pb.InferenceRequest.FromString(raw)
    except DecodeError:
        return LineError("invalid_request", "the body is no InferenceRequest message", unreadable=True)
    return from_message(message)


def from_message(message: pb.InferenceRequest) -> ParsedRequest | LineError:
    """A decoded message, checked."""
    custom_id = None
    try:
        custom_id = read_custom_id(message.custom_id or None, required=False)
        body = _body(message)
        return _renamed(parse_body(CHAT if "messages" in body else COMPLETIONS, custom_id, body))
    except Refused as refused:
        return LineError(refused.code, refused.message, refused.param, custom_id)


def encode_request(request: ParsedRequest) -> bytes:
    """Canonical bytes: equal requests have equal bytes."""
    return to_message(request).SerializeToString(deterministic=True)


def to_message(request: ParsedRequest) -> pb.InferenceRequest:
    """The message of a request. Text parts of a chat message become one text, a line each."""
    message = pb.InferenceRequest(
        model=request.model or "",
        custom_id=request.custom_id or "",
        sampling_params=_sampling_message(request.sampling),
    )
    if request.messages is not None:
        message.chat.messages.extend(_chat_message(each) for each in request.messages)
        _put_tools(message.chat, request.tools)
    elif isinstance(request.prompt, str):
        message.prompt = request.prompt
    else:
        message.token_ids.ids.extend(request.prompt or ())
    return message


def _body(message: pb.InferenceRequest) -> dict[str, object]:
    """The message as the body of the OpenAI API, so that there is one set of checks."""
    sampling = message.sampling_params
    body: dict[str, object] = {
        field.name: getattr(sampling, field.name)
        for field in sampling.DESCRIPTOR.fields
        if field.has_presence and field.message_type is None and sampling.HasField(field.name)
    }
    for name in ("stop", "bad_words", "stop_token_ids"):
        body[name] = list(getattr(sampling, name))
    body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    if sampling.HasField("grammar"):
        body |= _grammar_body(sampling.grammar)
    if message.WhichOneof("input") == "chat" and "logprobs" in body:
        body |= {"logprobs": True, "top_logprobs": sampling.logprobs}
    body["model"] = message.model
    match message.WhichOneof("input"):
        case "chat":
            body |= _chat_body(message.chat)
        case "prompt":
            body["prompt"] = message.prompt
        case "token_ids":
            body["prompt"] = list(message.token_ids.ids)
        case _:
            raise Refused("missing_required_parameter", "prompt, chat or token_ids is required", "input")
    return body


def _renamed(request: ParsedRequest) -> ParsedRequest:
    """A grammar goes by one name here, whichever that of its kind is in a body."""
    grammar = request.sampling.grammar
    if grammar is None:
        return request
    sampling = structs.replace(request.sampling, grammar=structs.replace(grammar, param="grammar"))
    return structs.replace(request, sampling=sampling)


def _chat_body(chat: pb.Chat) -> dict[str, object]:
    body: dict[str, object] = {"messages": [_message_body(message) for message in chat.messages]}
    if chat.tools:
        body["tools"] = [
            {"type": "function", "function": _tool_body(f"tools[{i}].function.parameters", tool)}
            for i, tool in enumerate(chat.tools)
        ]
    match chat.tool_choice.WhichOneof("kind"):
        case "mode":
            body["tool_choice"] = chat.tool_choice.mode
        case "function":
            body["tool_choice"] = {"type": "function", "function": {"name": chat.tool_choice.function}}
    if chat.HasField("parallel_tool_calls"):
        body["parallel_tool_calls"] = chat.parallel_tool_calls
    return body


def _message_body(message: pb.ChatMessage) -> dict[str, object]:
    body: dict[str, object] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        body["tool_calls"] = [
            {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.role == "tool":
        body |= {"tool_call_id": message.tool_call_id, "name": message.name or None}
    return body


def _tool_body(where: str, tool: pb.Tool) -> dict[str, object]:
    body: dict[str, object] = {"name": tool.name, "strict": tool.strict}
    if tool.HasField("description"):
        body["description"] = tool.description
    if tool.HasField("parameters"):
        body["parameters"] = object_in_json(where, tool.parameters)
    return body


def _grammar_body(grammar: pb.Grammar) -> dict[str, object]:
    match grammar.WhichOneof("kind"):
        case "json_schema":
            return {"guided_json": grammar.json_schema}
        case "regex":
            return {"guided_regex": grammar.regex}
        case "choice":
            return {"guided_choice": list(grammar.choice.texts)}
        case "lark":
            return {"guided_grammar": grammar.lark}
    raise invalid("grammar", "must have one of json_schema, regex, choice and lark")


def _sampling_message(sampling: Sampling) -> pb.SamplingParams:
    return pb.SamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
        stop=sampling.stop,
        ignore_eos=sampling.ignore_eos or None,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=sampling.logit_bias,
        bad_words=sampling.bad_words,
        min_tokens=sampling.min_tokens,
        stop_token_ids=sampling.stop_token_ids,
        include_stop_str_in_output=sampling.include_stop_str_in_output or None,
        echo=sampling.echo or None,
        grammar=_grammar_message(sampling.grammar),
        logprobs=sampling.logprobs,
        n=sampling.n,
        best_of=sampling.best_of,
        prompt_logprobs=sampling.prompt_logprobs,
        skip_special_tokens=sampling.skip_special_tokens,
    )


def _grammar_message(grammar: Grammar | None) -> pb.Grammar | None:
    if grammar is None:
        return None
    match grammar.kind:
        case "json_schema":
            return pb.Grammar(json_schema=grammar.source)
        case "regex":
            return pb.Grammar(regex=grammar.source)
        case "choice":
            return pb.Grammar(choice=pb.Choices(texts=grammar.choices))
        case "lark":
            return pb.Grammar(lark=grammar.source)


def _chat_message(message: Mapping[str, object]) -> pb.ChatMessage:
    calls: Any = message.get("tool_calls") or ()
    content = message.get("content") if calls else message["content"]
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in content)
    return pb.ChatMessage(
        role=str(message["role"]),
        content="" if content is None else str(content),
        tool_calls=[pb.ToolCall(id=call["id"], **_function_of(call)) for call in calls],
        tool_call_id=str(message.get("tool_call_id", "")),
        name=str(message.get("name") or "") if message["role"] == "tool" else "",
    )


def _function_of(call: Mapping[str, Any]) -> dict[str, str]:
    return {name: call["function"][name] for name in ("name", "arguments")}


def _put_tools(chat: pb.Chat, tools: Tools | None) -> None:
    if tools is None:
        return
    chat.tools.extend(_tool_message(tool) for tool in tools.offered)
    if tools.only is not None:
        chat.tool_choice.function = tools.only
    elif tools.choice != "auto":
        chat.tool_choice.mode = tools.choice
    if not tools.parallel:
        chat.parallel_tool_calls = False


def _tool_message(tool: Tool) -> pb.Tool:
    schema = None if tool.parameters is None else json.dumps(tool.parameters, ensure_ascii=False)
    return pb.Tool(name=tool.name, description=tool.description, parameters=schema, strict=tool.strict)
