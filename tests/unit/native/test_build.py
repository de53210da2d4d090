"""Which builds of the kernels a processor runs, how one is made, and which is taken."""

import shutil
from pathlib import Path

import pytest

from headrace.gpu_engine.kernels import build
from headrace.gpu_engine.kernels.levels import LEVELS, candidates, read_cpu_flags
from headrace.gpu_engine.native import choose

HERE = candidates(read_cpu_flags())
AVX2 = next(level for level in LEVELS if level.name == "avx2")

has_compiler = pytest.mark.skipif(
    shutil.which("g++") is None or not HERE, reason="NO g++ OR NO AVX2 HERE: nothing can be built"
)


def test_a_processor_is_offered_the_best_level_of_each_width() -> None:
    old = AVX2.needs
    assert [level.name for level in candidates(old)] == ["avx2"]
    assert [level.name for level in candidates(old | {"avx_vnni"})] == ["avxvnni"]
    wide = old | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
    assert [level.name for level in candidates(wide)] == ["avx512", "avx2"]
    assert [level.name for level in candidates(wide | {"avx512_vnni"})] == ["avx512vnni", "avx2"]
    assert candidates(frozenset({"sse2"})) == []


def test_flags_are_read_from_what_linux_says(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nflags\t\t: fpu avx2 fma\nbugs : none\n")
    assert read_cpu_flags(cpuinfo) == {"fpu", "avx2", "fma"}
    assert read_cpu_flags(tmp_path / "none") == frozenset()


def test_without_a_compiler_there_are_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert build.library_file(AVX2) is None


def test_a_user_without_a_home_or_with_one_that_is_read_only_has_no_kernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    (tmp_path / "file").touch()
    assert build.library_file(AVX2, tmp_path / "file" / "below a file") is None
    monkeypatch.setattr(Path, "home", no_home)
    assert build.library_file(AVX2) is None
    assert choose.choose_library() is None


def test_a_compiler_that_fails_means_no_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda name: "/bin/false")
    assert build.library_file(AVX2, tmp_path) is None
    assert not list(tmp_path.iterdir())


@has_compiler
def test_the_fastest_build_is_measured_once_and_remembered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two levels whose times are told, over one build that runs here."""
    file = build.library_file(HERE[-1])
    assert file is not None
    slow, fast = LEVELS[0], LEVELS[1]
    asked = []

    def measured(files: list[tuple[object, Path]]) -> object:
        asked.append(len(files))
        return fast

    monkeypatch.setattr(choose, "candidates", lambda flags: [slow, fast])
    monkeypatch.setattr(choose, "library_file", lambda level, cache_dir: file)
    monkeypatch.setattr(choose, "fastest", measured)
    assert choose.choose_library(tmp_path) is not None
    assert choose.choose_library(tmp_path) is not None
    assert asked == [2]


@has_compiler
def test_the_faster_of_two_builds_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    file = build.library_file(HERE[-1])
    assert file is not None
    times = iter([[2.0, 9.0], [3.0, 3.0]])
    monkeypatch.setattr(choose, "_measure", lambda kernels: next(times))
    assert choose.fastest([(LEVELS[0], file), (LEVELS[1], file)]) is LEVELS[1]
