"""What a broker refuses or cannot do, as errors that carry a sentence for the user."""

from __future__ import annotations


class BrokerError(Exception):
    """Base of all errors of the queue; its text says what is wrong and what to do."""


class BrokerUnavailable(BrokerError):
    """The broker cannot be reached, or went away; worth a retry with backoff."""


class BrokerRefused(BrokerError):
    """The broker answers, but cannot be used as it is (wrong settings, a cluster, too old)."""


class TooLarge(BrokerError):
    """A message is larger than the broker takes, now and ever."""


class UnknownCursor(BrokerError):
    """The cursor does not name a place in this request's log."""


class ReplyNotAllowed(BrokerError):
    """The reply topic does not match the allow-list."""
