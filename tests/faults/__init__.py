"""Faults injected into the real thing: processes are killed and frozen while readers check every token."""
