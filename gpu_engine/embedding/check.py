"""Whether a request for a vector makes sense."""

from __future__ import annotations

from headrace.gpu_engine.api import EngineError, EngineRequest


def check_embed(request: EngineRequest, size: int) -> EngineError | None:
    """Why `request` cannot be embedded, if it asks for that. `size`: numbers of a vector; 0: none."""
    embed = request.embed
    if embed is None:
        return None
    if not size:
        return _invalid("model", "This model has no embeddings; use one whose config names its hidden_size.")
    if embed.others:
        return _invalid("input", "This engine makes one vector to a request; send one text at a time.")
    if embed.dimensions is not None and not 1 <= embed.dimensions <= size:
        return _invalid(
            "dimensions",
            f"dimensions must be between 1 and {size}, which this model has, not {embed.dimensions}.",
        )
    if request.output_ids or request.params.n != 1 or request.params.best_of not in (None, 1):
        return _invalid("n", "A text that is embedded has no answers: n and best_of must be 1.")
    return None


def _invalid(param: str, message: str) -> EngineError:
    return EngineError(code="invalid_request", message=message, param=param)
