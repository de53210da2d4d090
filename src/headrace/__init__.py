"""Headrace: a queue-driven LLM inference service.

The packages below stand at the top level of the repository (`broker/`, `gpu_engine/`, ...) and are
imported under this name; `src/headrace/` holds one relative link to each.
"""

__version__ = "0.1.0"
