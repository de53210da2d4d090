"""Errors of kafka-python as errors of ours, which carry a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import kafka.errors as ke

from headrace.broker.errors import BrokerError, BrokerRefused, BrokerUnavailable, TooLarge

# What passes by itself, though kafka-python does not count it as retriable.
_PASSING = (
    ke.RetriableError,
    ke.KafkaConnectionError,
    ke.BrokerNotAvailableError,
    ke.OutOfOrderSequenceNumberError,
    ke.InvalidProducerEpochError,
    ke.UnknownProducerIdError,
    ke.RebalanceInProgressError,
    ke.IllegalGenerationError,
    ke.UnknownMemberIdError,
    ke.UnknownBrokerIdError,
    ke.KafkaStorageError,
)
_TOO_LARGE = (ke.MessageSizeTooLargeError, ke.RecordListTooLargeError)


@contextmanager
def translated(servers: str) -> Iterator[None]:
    """Raises what kafka-python raises inside as BrokerUnavailable, BrokerRefused or BrokerError."""
    try:
        yield
    except (ke.KafkaError, OSError) as error:
        raise translate(error, servers) from error


def translate(error: BaseException, servers: str) -> BrokerError:
    """`servers`: how the cluster is called in messages."""
    if isinstance(error, BrokerError):
        return error
    text = _text(error)
    if isinstance(error, ke.SaslAuthenticationFailedError):
        return BrokerRefused(f"{servers} refused the login: {text}; check user, password and mechanism")
    if isinstance(error, ke.UnsupportedSaslMechanismError | ke.IllegalSaslStateError):
        return BrokerRefused(f"{servers} does not offer this way to log in ({text}); set sasl_mechanism")
    if isinstance(error, ke.AuthorizationError):
        return BrokerRefused(f"{servers} does not allow this user to do that: {text}; check its ACLs")
    if isinstance(error, ke.FencedInstanceIdError):
        return BrokerRefused("another process uses the same group_instance_id; give each process its own")
    if isinstance(error, ke.InvalidSessionTimeoutError):
        return BrokerRefused(
            f"{servers} does not accept a lease of this length: it must lie between the brokers' "
            "group.min.session.timeout.ms and group.max.session.timeout.ms"
        )
    if isinstance(error, _TOO_LARGE):
        return too_large()
    if isinstance(error, ke.NotEnoughReplicasError | ke.NotEnoughReplicasAfterAppendError):
        return BrokerUnavailable(f"{servers} takes no writes: too few replicas are in sync; are nodes down?")
    if isinstance(error, ke.KafkaTimeoutError | ke.RequestTimedOutError | TimeoutError):
        # kafka-python does not tell a node that refuses our login from one that is away.
        return BrokerUnavailable(
            f"{servers} did not answer in time ({text}); is it running, and in reach, and do login and TLS "
            "settings match its own?"
        )
    if isinstance(error, (*_PASSING, OSError)):
        return BrokerUnavailable(f"{servers} cannot be used at the moment: {text}; is it running?")
    if isinstance(error, ke.UnsupportedVersionError | ke.UnrecognizedBrokerVersion):
        return BrokerRefused(f"{servers} is too old ({text}); Apache Kafka 3.0 or later is needed")
    return BrokerRefused(f"{servers} refused a request: {text}")


def too_large() -> TooLarge:
    return TooLarge(
        "a message is larger than the topic takes; put its body into the blob store and send its address "
        "(claim check: set a blob store), or raise max_message_bytes"
    )


def _text(error: BaseException) -> str:
    """Name and words of an error, on one line and not for ever."""
    words = " ".join(str(error).split())[:300]
    name = type(error).__name__
    return words if words.startswith(name) or not words else f"{name}: {words}"
