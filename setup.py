"""The native CPU step: an optional extension. Where no C++ compiler is found, installing goes on and the torch path serves."""
import os
from glob import glob
from multiprocessing.pool import ThreadPool

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = "src/polydec/models/cpu/"
FLAGS = ["-std=c++17", "-O3", "-g0", "-ffp-contract=off", "-pthread", "-Wno-uninitialized"]


class SideBySide(build_ext):
    """Compiles as many files at once as there are cores: one after the other they take minutes."""
    def build_extension(self, ext):
        one_by_one = self.compiler.compile

        def compile_all(sources, **how):
            with ThreadPool(os.cpu_count() or 1) as pool:
                objects = pool.map(lambda source: one_by_one([source], **how), sources)
            return [o for some in objects for o in some]

        self.compiler.compile = compile_all
        super().build_extension(ext)


setup(cmdclass={"build_ext": SideBySide},
      ext_modules=[Extension("polydec.models.cpu._step", sorted(glob(HERE + "*.cpp")), depends=sorted(glob(HERE + "*.h")),
                             language="c++", extra_compile_args=FLAGS, extra_link_args=["-pthread"], optional=True)])
