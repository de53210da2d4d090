"""The line formats: what a request looks like in a file, a queue or a call, and its answer."""
