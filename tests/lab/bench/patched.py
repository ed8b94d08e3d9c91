"""A change of the package's text, put into the running package: functions get the code that the changed text has."""

from importlib import import_module
from pathlib import Path
from types import CodeType

import polydec

ROOT = Path(polydec.__file__).parent


def codes(code, out=None):
    """Every function's code in a module's, by its qualified name."""
    out = {} if out is None else out
    for x in code.co_consts:
        if isinstance(x, CodeType):
            out.setdefault(x.co_qualname, x)
            codes(x, out)
    return out


def bare(owner, name):
    """The function that stands under this name, whatever it is wrapped in."""
    found = vars(owner)[name]
    for wrapper in ("fget", "func", "__func__"):
        found = getattr(found, wrapper, None) or found
    return found


def put(patch, file, old, new):
    """`old` becomes `new` in a file (below src/polydec), for as long as the patch lasts."""
    text = (ROOT / file).read_text("utf-8")
    assert text.count(old) == 1, f"{file} has the old text {text.count(old)} times"
    module = import_module("polydec." + file.removesuffix(".py").replace("/", "."))
    before, after = (
        codes(compile(t, module.__file__, "exec")) for t in (text, text.replace(old, new))
    )
    changed = 0
    for name, code in after.items():
        if "<locals>" in name or same(code, before[name]):
            continue
        *owners, last = name.split(".")
        owner = module
        for part in owners:
            owner = getattr(owner, part)
        if last in vars(owner) and hasattr(bare(owner, last), "__code__"):
            patch.setattr(bare(owner, last), "__code__", code)
            changed += 1
    assert changed, f"{file}: no function was changed"


def same(a, b):
    """Whether two codes do the same, wherever they stand."""
    if a.co_code != b.co_code or a.co_names != b.co_names or len(a.co_consts) != len(b.co_consts):
        return False
    return all(
        same(x, y)
        if isinstance(x, CodeType) and isinstance(y, CodeType)
        else type(x) is type(y) and x == y
        for x, y in zip(a.co_consts, b.co_consts, strict=True)
    )
