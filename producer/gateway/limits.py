"""How much one gateway lets in, and what a request counts for."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from headrace.v1 import inference_pb2 as pb

BYTES_PER_TOKEN = 4
# What a request that names no max_tokens is taken to ask for: the real number is the model's.
USUAL_MAX_TOKENS = 256


class GatewayLimits(BaseModel):
    """Bounds of what is in flight through one gateway: requests that are streamed, from their acceptance to
    the end of their stream. Those that are only submitted stay with the broker; the `size` of their lane's
    policy bounds them (`broker.queue_policy`).

    `max_requests` counts requests, `max_tokens` estimated ones (`estimated_tokens`). A request that finds the
    gateway empty is taken whatever it counts for.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_requests: int = Field(default=10_000, ge=1)
    max_tokens: int = Field(default=50_000_000, ge=1)


def estimated_tokens(request: pb.InferenceRequest) -> int:
    """Tokens of prompt and answers together, without a tokenizer: a quarter of the prompt's bytes (exact
    where the prompt comes as tokens), and `max_tokens` for each of the answers that are made."""
    match request.WhichOneof("input"):
        case "prompt":
            prompt = len(request.prompt) // BYTES_PER_TOKEN
        case "chat":
            prompt = request.chat.ByteSize() // BYTES_PER_TOKEN
        case _:
            prompt = len(request.token_ids.ids)
    sampling = request.sampling_params
    each = sampling.max_tokens if sampling.HasField("max_tokens") else USUAL_MAX_TOKENS
    return prompt + each * max(1, sampling.n, sampling.best_of)
