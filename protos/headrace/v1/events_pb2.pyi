from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Event(_message.Message):
    __slots__ = ("request_id", "epoch", "started", "delta", "finished", "failed", "moved", "fence", "handed")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    HANDED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    epoch: int
    started: EventStarted
    delta: EventDelta
    finished: EventFinished
    failed: EventFailed
    moved: EventMoved
    fence: EventFence
    handed: EventHanded
    def __init__(self, request_id: _Optional[str] = ..., epoch: _Optional[int] = ..., started: _Optional[_Union[EventStarted, _Mapping]] = ..., delta: _Optional[_Union[EventDelta, _Mapping]] = ..., finished: _Optional[_Union[EventFinished, _Mapping]] = ..., failed: _Optional[_Union[EventFailed, _Mapping]] = ..., moved: _Optional[_Union[EventMoved, _Mapping]] = ..., fence: _Optional[_Union[EventFence, _Mapping]] = ..., handed: _Optional[_Union[EventHanded, _Mapping]] = ...) -> None: ...

class EventStarted(_message.Message):
    __slots__ = ("consumer", "delivery", "seed", "body_hash", "fingerprint", "kept", "at_ms", "deaths", "lone_deaths", "alone")
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    BODY_HASH_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    DEATHS_FIELD_NUMBER: _ClassVar[int]
    LONE_DEATHS_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    consumer: str
    delivery: str
    seed: int
    body_hash: bytes
    fingerprint: str
    kept: int
    at_ms: int
    deaths: int
    lone_deaths: int
    alone: bool
    def __init__(self, consumer: _Optional[str] = ..., delivery: _Optional[str] = ..., seed: _Optional[int] = ..., body_hash: _Optional[bytes] = ..., fingerprint: _Optional[str] = ..., kept: _Optional[int] = ..., at_ms: _Optional[int] = ..., deaths: _Optional[int] = ..., lone_deaths: _Optional[int] = ..., alone: _Optional[bool] = ...) -> None: ...

class EventDelta(_message.Message):
    __slots__ = ("seq", "choice", "token_ids", "text", "logprobs", "prompt_logprobs")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    seq: int
    choice: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    def __init__(self, seq: _Optional[int] = ..., choice: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("token", "logprob", "top_tokens", "top_logprobs")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    token: int
    logprob: float
    top_tokens: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, token: _Optional[int] = ..., logprob: _Optional[float] = ..., top_tokens: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class EventFinished(_message.Message):
    __slots__ = ("reason", "usage", "timings", "reasons", "embeddings")
    REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    usage: Usage
    timings: Timings
    reasons: _containers.RepeatedScalarFieldContainer[str]
    embeddings: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, reason: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., reasons: _Optional[_Iterable[str]] = ..., embeddings: _Optional[_Iterable[bytes]] = ...) -> None: ...

class EventFailed(_message.Message):
    __slots__ = ("code", "message", "status", "param", "usage", "timings")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    status: int
    param: str
    usage: Usage
    timings: Timings
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., status: _Optional[int] = ..., param: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ...) -> None: ...

class EventHanded(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class EventMoved(_message.Message):
    __slots__ = ("pool", "log")
    POOL_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    pool: str
    log: str
    def __init__(self, pool: _Optional[str] = ..., log: _Optional[str] = ...) -> None: ...

class EventFence(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "cached_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("queued_ms", "first_token_ms", "run_ms")
    QUEUED_MS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_MS_FIELD_NUMBER: _ClassVar[int]
    RUN_MS_FIELD_NUMBER: _ClassVar[int]
    queued_ms: int
    first_token_ms: int
    run_ms: int
    def __init__(self, queued_ms: _Optional[int] = ..., first_token_ms: _Optional[int] = ..., run_ms: _Optional[int] = ...) -> None: ...
