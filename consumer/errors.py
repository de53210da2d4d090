"""Why a consumer stops that was not asked to: each text is a sentence for the user."""

from __future__ import annotations


class ConsumerError(Exception):
    """Base of all errors that end a consumer."""


class EngineUnusable(ConsumerError):
    """The engine cannot start as it is configured (no such model, too little memory): nothing to retry."""


class EngineSick(ConsumerError):
    """The engine died too often in a short time: the requests were handed back, somebody should look."""
