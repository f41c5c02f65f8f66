"""The one thing pyproject.toml cannot say: a wheel carries the compiled native library.

With GRACE_WHEEL_CUDA=1, it carries the GPU kernels, too. `make wheel` sets that.
"""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

if sys.platform == "win32":
    raise SystemExit("error: GRACE does not run on Windows; install it in WSL 2 (Linux)")

ROOT = Path(__file__).resolve().parent


class BuildWithNative(build_py):
    """An editable install compiles nothing: there, `make native` keeps the library current."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        out = (Path(self.build_lib) / "grace" / "native" / "_build").resolve()
        build = (sys.executable, "-m", "grace.native.build", "--bare", "--out", str(out))
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        for more in ((), ("--cuda",)) if os.environ.get("GRACE_WHEEL_CUDA") == "1" else ((),):
            compiled = subprocess.run([*build, *more], cwd=ROOT, env=environment, check=False)
            if compiled.returncode:
                raise SystemExit(compiled.returncode)


class PlatformDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


class PlatformWheel(bdist_wheel):
    """The library is loaded by ctypes: it needs this platform, but no particular Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    distclass=PlatformDistribution,
    cmdclass={"build_py": BuildWithNative, "bdist_wheel": PlatformWheel},
)
