"""The native CPU step: an optional extension. Where no C++ compiler is found, installing goes on and the torch path serves."""

import os
from glob import glob
from multiprocessing.pool import ThreadPool
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

HERE = "src/polydec/models/native/"
FLAGS = ["-std=c++17", "-O3", "-g0", "-MMD", "-ffp-contract=off", "-pthread", "-Wno-uninitialized"]


def fresh(made: Path) -> bool:
    """Whether an object file is newer than all that went into it: what the compiler listed beside it (-MMD), and the flags."""
    listed = made.with_suffix(".d")
    if not made.is_file() or not listed.is_file():
        return False
    read = listed.read_text().replace("\\\n", " ").partition(": ")[2].split()
    return all(
        os.path.isfile(x) and os.path.getmtime(x) < made.stat().st_mtime for x in [*read, __file__]
    )


class SideBySide(build_ext):
    """Compiles as many files at once as there are cores, only those that changed: all, one after the other, take minutes."""

    def get_ext_filename(self, fullname):
        """Without Python's version: the library has a C interface and is loaded by ctypes."""
        return fullname.replace(".", os.sep) + ".so"

    def build_extension(self, ext):
        one_by_one = self.compiler.compile

        def compile_all(sources, output_dir=None, **how):
            def compile_one(source):
                made = self.compiler.object_filenames([source], output_dir=output_dir)
                return (
                    made
                    if fresh(Path(made[0]))
                    else one_by_one([source], output_dir=output_dir, **how)
                )

            with ThreadPool(os.cpu_count() or 1) as pool:
                return [o for some in pool.map(compile_one, sources) for o in some]

        self.compiler.compile = compile_all
        super().build_extension(ext)


class AnyPython(bdist_wheel):
    """One wheel for each kind of machine serves every Python 3: nothing in it is compiled against one."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(
    cmdclass={"build_ext": SideBySide, "bdist_wheel": AnyPython},
    ext_modules=[
        Extension(
            "polydec.models.native._step",
            sorted(glob(HERE + "*.cpp")),
            depends=sorted(glob(HERE + "*.h")),
            language="c++",
            extra_compile_args=FLAGS,
            extra_link_args=["-pthread"],
            optional=True,
        )
    ],
)
