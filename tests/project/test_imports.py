"""The rows of the import table in the design, held by import-linter."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("broker", "cli", "consumer", "gpu_engine", "producer")


def lay_out_package(target: Path) -> None:
    """Copies the folders to where a wheel puts them: import-linter does not follow links."""
    skip = shutil.ignore_patterns("__pycache__")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, target / "headrace" / package, ignore=skip)
    shutil.copytree(ROOT / "protos/headrace/v1", target / "headrace/v1", ignore=skip)
    shutil.copy(ROOT / "src/headrace/__init__.py", target / "headrace/__init__.py")
    shutil.copy(ROOT / "pyproject.toml", target / "pyproject.toml")


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_packages_import_only_what_the_design_allows(tmp_path: Path) -> None:
    lay_out_package(tmp_path)
    result = lint_imports(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_forbidden_import_is_caught(tmp_path: Path) -> None:
    lay_out_package(tmp_path)
    (tmp_path / "headrace/producer/planted.py").write_text("import headrace.consumer\n")
    assert lint_imports(tmp_path).returncode == 1


def test_torch_in_the_text_package_is_caught(tmp_path: Path) -> None:
    lay_out_package(tmp_path)
    (tmp_path / "headrace/gpu_engine/text/planted.py").write_text("import torch\n")
    assert lint_imports(tmp_path).returncode == 1
