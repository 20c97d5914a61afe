"""Builds the native kernels before the package is put together. Everything else is in pyproject.toml."""

import runpy
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py


class BuildWithKernels(build_py):
    """Without a compiler, or when it fails, the package is whole all the same: torch computes."""

    def run(self) -> None:
        native = runpy.run_path(str(Path(__file__).parent / "kernels" / "cpu" / "build.py"))
        try:
            native["build"]()
        except RuntimeError as error:
            print(f"the native kernels were not built: {error}")
        super().run()


class PlatformDistribution(Distribution):
    """Holds libraries, so its wheel is for one platform."""

    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": BuildWithKernels}, distclass=PlatformDistribution)
