"""Embeddings: one vector for a whole text, made of the hidden states that its tokens end with."""
