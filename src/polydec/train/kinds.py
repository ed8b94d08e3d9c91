"""The kinds of drafters that `polydec train` makes on a target's states, by name."""

from __future__ import annotations

from collections.abc import Mapping

from polydec.drafters.eagle import FromEagle
from polydec.drafters.falcon import FromFalcon
from polydec.drafters.heads import FromHeads
from polydec.drafters.longspec import FromLongSpec
from polydec.drafters.mtp import FromMtp
from polydec.drafters.probes import FromProbes
from polydec.learned import published, published_eagle1, published_medusa
from polydec.learned.kinds import (
    chimera,
    clover,
    eagle,
    eagle3,
    falcon,
    heads,
    longspec,
    mtp,
    narrow,
    probes,
)
from polydec.train.falcon import make_falcon
from polydec.train.longspec import depth_before, make_longspec
from polydec.train.mtp import make_mtp
from polydec.train.probes import make_hidden, make_ppd
from polydec.train.students import (
    Kind,
    depths_of,
    make_chimera,
    make_clover,
    make_eagle,
    make_eagle3,
    make_heads,
    make_medusa_published,
    make_narrow,
    quarters_of,
)

EVERY = frozenset(("every",))
HEADED = EVERY | {"tokens"}
"""Of kinds with a head of their own."""

KINDS: Mapping[str, Kind] = {
    "medusa": Kind(make_heads(False, False), FromHeads, heads.save),
    "medusa-published": Kind(make_medusa_published, FromHeads, published_medusa.save),
    "hydra": Kind(make_heads(True, False), FromHeads, heads.save),
    "hydra++": Kind(make_heads(True, True), FromHeads, heads.save),
    "hydra++-deep": Kind(make_heads(True, True, 4), FromHeads, heads.save),
    "clover": Kind(make_clover, FromHeads, clover.save, 3, 1.0),
    "eagle": Kind(make_eagle(False), FromEagle, eagle.save, 1, 1.0, takes=EVERY),
    "eagle-published": Kind(
        make_eagle(True), FromEagle, published_eagle1.save, 1, 10.0, takes=EVERY
    ),
    "eagle-3": Kind(make_eagle3(False), FromEagle, eagle3.save, 4, depths=depths_of, takes=HEADED),
    "eagle-3-narrow": Kind(
        make_narrow, FromEagle, narrow.save_trained, 4, depths=quarters_of, takes=HEADED | {"start"}
    ),
    "eagle-3-published": Kind(
        make_eagle3(True), FromEagle, published.save, 4, depths=depths_of, takes=HEADED
    ),
    "chimera": Kind(make_chimera, FromEagle, chimera.save, takes=EVERY),
    "falcon": Kind(make_falcon, FromFalcon, falcon.save, 4, 1.0),
    "longspec": Kind(
        make_longspec, FromLongSpec, longspec.save, 4, depths=depth_before, takes=EVERY
    ),
    "ppd": Kind(make_ppd, FromProbes, probes.save, rows=lambda nodes: 3 * nodes),
    "lud": Kind(make_ppd, FromProbes, probes.save, sure=0.9, rows=lambda nodes: 3 * nodes),
    "hidden-transfer": Kind(make_hidden, FromProbes, probes.save, rows=lambda nodes: 3 * nodes),
    "mtp": Kind(
        make_mtp,
        FromMtp,
        mtp.save,
        4,
        1.0,
        rows=lambda nodes: 5 * nodes + 4,
        torch=True,
        takes=EVERY,
    ),
}
