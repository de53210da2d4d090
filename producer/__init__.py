"""Everything that puts requests in and hands results back."""
