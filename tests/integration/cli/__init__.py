"""The command as a user meets it: real processes, an embedded broker, the simulated engine."""
