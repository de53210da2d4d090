"""The command: parses, composes the services, shows progress."""
