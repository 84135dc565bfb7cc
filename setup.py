"""Builds libnf12.so and nf12._C with CMake; everything else is in pyproject.toml."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools import __version__ as setuptools_version
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


def torch_folder() -> str:
    """Where the torch to build against lies; importing it would cost seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        sys.exit(
            "nf12 builds against an installed torch >= 2.11 and found none: install torch, then "
            "`pip install --no-build-isolation .`"
        )
    return spec.submodule_search_locations[0]


def check_tools() -> None:
    """One sentence for what the build lacks, before CMake's hundred lines."""
    torch_folder()
    if shutil.which("cmake") is None:
        sys.exit("nf12 builds with CMake >= 3.22 and found none: `pip install cmake`")
    if importlib.util.find_spec("pybind11") is None:
        sys.exit("nf12 builds with pybind11 >= 2.13 and found none: `pip install pybind11`")


class CMakeBuild(build_ext):
    """Configures, builds and installs into the package folder."""

    def run(self) -> None:
        in_place = self.inplace or getattr(self, "editable_mode", False)
        self.package = (ROOT if in_place else Path(self.build_lib).resolve()) / "nf12"
        # One folder for every kind of build, so that the next one is incremental.
        build = ROOT / "build" / f"cmake-{sys.implementation.cache_tag}"
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        subprocess.run(
            [
                "cmake", "-S", str(ROOT), "-B", str(build), *generator,
                f"-DPython_EXECUTABLE={sys.executable}",
                f"-DNF12_TORCH_DIR={torch_folder()}",
                f"-DNF12_GPU_TARGETS={os.environ.get('NF12_GPU_TARGETS') or 'auto'}",
            ],
            check=True,
        )  # fmt: skip
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
        subprocess.run(["cmake", "--build", str(build), "--parallel", jobs], check=True)
        subprocess.run(
            ["cmake", "--install", str(build), "--prefix", str(self.package)], check=True
        )

    def get_outputs(self) -> list[str]:
        return [str(path) for path in self.package.rglob("*.so")]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


if int(setuptools_version.split(".")[0]) < 77:  # older ones do not read pyproject.toml's licence
    sys.exit(
        f"nf12 builds with setuptools >= 77, this is {setuptools_version}: "
        "`pip install -U setuptools`"
    )
if not {"sdist", "egg_info", "clean"} & set(sys.argv):
    check_tools()

setup(ext_modules=[Extension("nf12._C", sources=[])], cmdclass={"build_ext": CMakeBuild})
