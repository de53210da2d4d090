"""The CPU kernels under the compiler's sanitizers: addresses and undefined behaviour, then races."""

import shutil
import subprocess
from pathlib import Path

import pytest

from headrace.gpu_engine.kernels.build import SOURCES
from tests.support.native import compiled

pytestmark = [compiled, pytest.mark.slow, pytest.mark.timeout(600)]  # compilers are slow on busy machines

DRIVER = Path(__file__).with_name("kernels.cpp")
KERNELS = [
    SOURCES / f"{name}.cpp" for name in ("pool", "pack", "nibbles", "linear", "experts", "lora", "attention")
]


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_no_shape_reads_or_writes_astray_and_no_threads_race(sanitizers: str, tmp_path: Path) -> None:
    program = tmp_path / "kernels"
    compiler = shutil.which("g++")
    assert compiler is not None
    subprocess.run(
        [
            *(compiler, "-O1", "-g", "-march=native", "-std=c++17", "-pthread"),
            *(f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", f"-I{SOURCES}"),
            *map(str, (DRIVER, *KERNELS)),
            *("-o", str(program)),
        ],
        check=True,
    )
    result = subprocess.run([program], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-4000:]
    assert "all shapes done" in result.stdout
