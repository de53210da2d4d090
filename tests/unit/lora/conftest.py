"""Fixtures of the LoRA tests."""

from tests.support.tiny_models import tiny_model

__all__ = ["tiny_model"]
