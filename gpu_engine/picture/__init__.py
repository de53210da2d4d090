"""Pictures of what an engine did, as plain shapes that several formats can show."""
