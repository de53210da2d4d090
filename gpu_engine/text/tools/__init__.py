"""Tools: how a model is told of them, and how its calls are found in what it writes."""
