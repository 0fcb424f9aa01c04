"""Packaging of fairseq_tg."""

import platform
import re
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "fairseq_tg" / "__init__.py").read_text()).group(1)
NATIVE = Path("fairseq_tg") / "compiled" / "native"


def native_library(name: str, *flags: str) -> Extension:
    """The engine of compiled models for one instruction set. Without a compiler the rest still installs."""
    return Extension(
        f"fairseq_tg.compiled.{name}",
        sources=[str(NATIVE / f"{name.strip('_')}.cpp")],
        depends=[str(path) for path in (HERE / NATIVE).iterdir()],
        extra_compile_args=["-std=c++17", "-O3", "-fopenmp", "-Wno-psabi", *flags],
        extra_link_args=["-fopenmp"],
        optional=True,
    )


class BuildNative(build_ext):
    """Leaves a note where a library could not be built, for `fairseq-tg --version`: pip shows nothing of it."""

    def get_ext_filename(self, name: str) -> str:
        """Without a version of Python in it: ctypes loads the libraries, which know nothing of Python."""
        return str(Path(*name.split("."))) + EXTENSION_SUFFIXES[-1]

    def run(self) -> None:
        self.failures = {}
        super().run()
        for extension in self.extensions:
            library = Path(self.get_ext_fullpath(extension.name))
            note = library.with_name(f"{extension.name.rpartition('.')[2]}.failed")
            if extension.name in self.failures:
                library.unlink(missing_ok=True)  # of another day's sources
                note.parent.mkdir(parents=True, exist_ok=True)
                note.write_text(f"{self.failures[extension.name]}\n")
            else:
                note.unlink(missing_ok=True)

    def build_extension(self, extension: Extension) -> None:
        try:
            super().build_extension(extension)
        except Exception as error:
            self.failures[extension.name] = " ".join(str(error).split())
            raise


class AnyPython(bdist_wheel):
    """One wheel for all versions of Python on a platform."""

    def get_tag(self) -> tuple:
        return "py3", "none", super().get_tag()[2]


LIBRARIES = [native_library("_native")]  # runs anywhere; says whether a better one would
if platform.machine() in ("x86_64", "AMD64"):
    LIBRARIES.append(native_library("_native_avx2", "-mavx2", "-mfma"))
    AVX512 = ("f", "bw", "vl", "dq", "vnni")
    LIBRARIES.append(native_library("_native_avx512", "-mavx2", "-mfma", *(f"-mavx512{part}" for part in AVX512)))

setup(
    name="fairseq_tg",
    version=VERSION,
    description="Trainable greedy decoding for fairseq: beam-search quality at greedy cost",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    packages=find_packages(include=["fairseq_tg", "fairseq_tg.*"]),
    package_data={"fairseq_tg": ["py.typed"], "fairseq_tg.serve": ["page.html"]},
    ext_modules=LIBRARIES,
    cmdclass={"build_ext": BuildNative, "bdist_wheel": AnyPython},
    python_requires=">=3.10",
    # What runs a compiled model. fairseq and torch are for training: who serves needs neither, and who trains has them,
    # of the versions and builds of his choice.
    install_requires=["numpy", "safetensors>=0.4", "sentencepiece"],
    extras_require={
        "train": [
            # fairseq 0.12.2 does not import from Python 3.11 on; fairseq-fixed is the same code for those.
            'fairseq==0.12.2; python_version < "3.11"',
            'fairseq-fixed==0.12.3.1; python_version >= "3.11"',
            "torch>=2.2",
            "filelock>=3.12",
            "hydra-core",
            "omegaconf",
            "sacrebleu>=2.0",
            "tqdm",
        ],
        "serve": [
            "starlette>=0.40",
            "uvicorn>=0.30",
            "httptools",
            'uvloop; sys_platform != "win32"',
            "prometheus-client>=0.20",
            "python-multipart>=0.0.18",
        ],
        "detect": ["langdetect"],
        "metrics": ["nltk>=3.8"],
        "plots": ["matplotlib>=3.7"],
        "fast": ["ctranslate2>=4.0"],
        "text": ["sacremoses>=0.1", "subword-nmt>=0.3.8"],
        "dev": [
            *("clang-format", "hypothesis", "libretranslatepy", "mypy", "pre-commit", "pytest", "pytest-xdist", "ruff"),
            "tensorboardX",
        ],
    },
    entry_points={"console_scripts": ["fairseq-tg = fairseq_tg.cli:main"]},
)
