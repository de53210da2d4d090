"""Text on its way to tokens and back: tokenizer, chat template, detokeniser, stop strings. No torch here."""
