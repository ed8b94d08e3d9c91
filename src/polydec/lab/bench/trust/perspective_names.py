"""The perspectives by name."""

from __future__ import annotations

from collections.abc import Mapping

from polydec.lab.bench.trust import ethics, fairness, labelled, privacy, stereotype, toxicity
from polydec.lab.bench.trust.protocols import TrustPerspective

PERSPECTIVES: Mapping[str, TrustPerspective] = {
    "toxicity": toxicity.PERSPECTIVE,
    "stereotype": stereotype.PERSPECTIVE,
    "robustness": labelled.PERSPECTIVE,
    "other distributions": labelled.PERSPECTIVE,
    "demonstrations": labelled.PERSPECTIVE,
    "privacy": privacy.PERSPECTIVE,
    "ethics": ethics.PERSPECTIVE,
    "fairness": fairness.PERSPECTIVE,
}
