"""Which positions of a canvas are fed: the keys and values of the others stay as an earlier pass left them."""
from __future__ import annotations

from polydec.refreshes.dual import Dual
from polydec.refreshes.full import Full
from polydec.refreshes.prefix import Prefix

KEPT = Full(), Prefix(), Dual()
"""By how much is kept within a block, as recipes' `cache` counts it."""
