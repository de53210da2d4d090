"""Fixtures of the native decoder."""

from tests.support.tiny_models import tiny_model

__all__ = ["tiny_model"]
