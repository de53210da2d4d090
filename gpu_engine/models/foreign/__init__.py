"""Decoders of families that are not written out here, run by transformers over our paged attention."""
