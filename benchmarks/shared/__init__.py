"""What both benchmarks need: the report, processes and their environments, the machine, arithmetic."""
