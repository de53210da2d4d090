"""A wheel brings the CPU kernels for every level of processor, if they were built before it: `make wheel`.

They need nothing that torch does not bring, so one wheel serves all Pythons on Linux. A wheel without them
holds the sources alone, and the kernels are built at their first use.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CpuKernels(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folder = Path(self.root) / "gpu_engine" / "kernels" / "prebuilt"
        libraries = [] if version == "editable" else sorted(folder.glob("*.so"))
        if not libraries:
            return
        for library in libraries:
            build_data["force_include"][str(library)] = f"headrace/gpu_engine/kernels/prebuilt/{library.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{platform.machine()}"
