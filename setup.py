"""The native CPU step: an optional extension. Where no C++ compiler is found, installing goes on and the torch path serves."""
from glob import glob

from setuptools import Extension, setup

HERE = "src/polydec/models/cpu/"
FLAGS = ["-std=c++17", "-O3", "-g0", "-ffp-contract=off", "-pthread", "-Wno-uninitialized"]

setup(ext_modules=[Extension("polydec.models.cpu._step", sorted(glob(HERE + "*.cpp")), depends=sorted(glob(HERE + "*.h")),
                             language="c++", extra_compile_args=FLAGS, extra_link_args=["-pthread"], optional=True)])
