"""Who computes how many tokens in the next step. No torch here: decisions take microseconds."""
