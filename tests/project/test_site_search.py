"""The site builds without a warning, and its search leads who asks for a thing to the page that answers it, not to a module
that has the word in a title.

The index is the one that MkDocs writes; it is asked as the site's own search asks it: words are beginnings of words, a
hit in a title weighs a thousand times one in a text, a page weighs what it says, and hits are grouped by page."""

import json
import math
import os
import re
from collections import Counter, defaultdict

import pytest

import forked
from project_paths import PROJECT_ROOT

K1 = 1.2
FIELDS = {"title": 1000.0, "text": 1.0}
STOPPED = {
    "a",
    "and",
    "at",
    "by",
    "for",
    "in",
    "is",
    "it",
    "no",
    "not",
    "of",
    "on",
    "or",
    "the",
    "to",
    "with",
}

ASKED = {
    "install": ("questions.html#install-upgrade", "getting-started.html"),
    "streaming": ("questions.html#streaming",),
    "stop strings": ("questions.html#stop-strings",),
    "temperature": ("questions.html#temperature-top-p-seed", "sampling.html"),
    "docker": ("questions.html#docker-containers",),
    "offline": ("questions.html#offline-without-a-network",),
    "uninstall": ("questions.html#uninstall",),
    "logs": ("questions.html#logs-debugging",),
    "windows": ("questions.html#windows-macos-arm",),
    "gpu": ("questions.html#gpu-gpus-cuda",),
    "api key": ("questions.html#api-key",),
    "json schema": ("constraints.html#json-schemas",),
    "chat template": ("questions.html#chat-template-system-prompt", "serve.html#fields"),
    "lora": ("questions.html#lora-adapters",),
    "gguf": ("questions.html#gguf-files", "families.html"),
    "quantisation": ("questions.html#quantisation-quantization-int8-4-bits",),
    "batch": ("questions.html#batch-many-requests",),
    "embedding": ("questions.html#embedding-vectors-of-texts", "embeddings.html"),
    "beam search": ("search.html", "questions.html#beam-search"),
    "speculative decoding": ("questions.html#speculative-decoding", "draft-and-verify.html"),
    "memory": (
        "questions.html#memory-out-of-memory",
        "model-names.html#how-much-memory-a-model-takes",
    ),
    "quantization": ("questions.html#quantisation-quantization-int8-4-bits",),
    "timeout": ("questions.html#timeout-rate-limit",),
    "license": ("questions.html#licence-license",),
    "fine-tuning": ("questions.html#fine-tuning-training",),
    "ctrl-c": ("questions.html#ctrl-c-interrupted-resume",),
    "hugging face token": ("questions.html#hugging-face-token-private-models",),
    "error": ("questions.html#errors-bugs",),
    "slow": ("questions.html#slow-faster",),
    "context length": ("questions.html#context-length-long-prompts",),
    "max tokens": ("questions.html#length-of-an-answer-max_tokens",),
    "benchmark": ("questions.html#benchmark-compare-methods", "bench.html"),
    "python version": ("questions.html#requirements-python-version-disk",),
    "port": ("questions.html#host-port-who-reaches-the-server",),
    "multiple gpus": ("questions.html#gpu-gpus-cuda",),
    "kubernetes": ("questions.html#kubernetes-systemd-a-service",),
    "delete model": ("questions.html#delete-remove-a-model", "model-names.html"),
    "image": ("questions.html#images-audio",),
    "async": ("python.html#in-an-asyncio-program",),
    "function calling": ("questions.html#tool-calling-functions",),
    "cancel": ("python.html#in-an-asyncio-program",),
    "vision": ("vision.html",),
    "cpu only torch": ("index.html#start", "getting-started.html"),
    "logprobs": ("questions.html#log-probabilities-logprobs",),
    "llama.cpp": ("questions.html#ollama-llamacpp-vllm-transformers",),
    "ollama": ("questions.html#ollama-llamacpp-vllm-transformers",),
    "several models": ("questions.html#concurrency-several-models-users",),
    "concurrency": ("questions.html#concurrency-several-models-users",),
    "environment variables": ("questions.html#environment-variables-configuration-settings",),
    "config file": ("questions.html#environment-variables-configuration-settings",),
    "jupyter": ("questions.html#examples-notebooks-jupyter",),
    "prompt caching": ("questions.html#prompt-caching-prefixes",),
    "long context": ("questions.html#context-length-long-prompts",),
}
"""What somebody types, and the places of the site that answer it."""


class SiteIndex:
    """The site's index, asked like its own search (lunr, as Material asks it)."""

    def __init__(self, docs):
        self.docs = {d["location"]: d for d in docs}
        self.counts = {
            (location, field): Counter(words(d[field]))
            for location, d in self.docs.items()
            for field in FIELDS
        }
        held = defaultdict(list)
        for place, counts in self.counts.items():
            for word in counts:
                held[word].append(place)
        self.held = held
        total = len(self.docs)
        self.rarity = {
            word: math.log(1 + abs((total - len(at) + 0.5) / (len(at) + 0.5)))
            for word, at in held.items()
        }

    def found(self, query):
        """Hits as (page, best place on it), best first."""
        # A hyphen parts words in a question as on a page.
        asked = re.split(r"[\s\-]+", query.lower().strip())
        weights = Counter(word for term in asked for word in self.held if word.startswith(term))
        score, matched = defaultdict(float), defaultdict(set)
        for word, weight in weights.items():
            for location, field in self.held[word]:
                n = self.counts[location, field][word]
                boost = FIELDS[field] * self.docs[location].get("boost", 1)
                score[location] += weight * boost * self.rarity[word] * (K1 + 1) * n / (K1 + n)
                matched[location] |= {term for term in asked if word.startswith(term)}
        pages = {}
        for location, value in score.items():
            page = location.partition("#")[0]
            share = (page == location) + len(matched[location]) / len(asked)
            value *= 1 + share**2
            if value > pages.get(page, (0, ""))[0]:
                pages[page] = value, location
        return [(page, at) for page, (_, at) in sorted(pages.items(), key=lambda x: -x[1][0])]


def words(text):
    plain = re.sub(r"<[^>]*>", " ", text).lower()
    return [word for word in re.split(r"[\s\-]+", plain) if word and word not in STOPPED]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built once. Not quietly: MkDocs counts no warning then."""
    pytest.importorskip("material", reason="MkDocs Material is not installed: polydec[docs]")
    at = tmp_path_factory.mktemp("site")
    done = forked.run(
        *("-m", "mkdocs", "build", "--strict", "--site-dir", str(at)),
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        cwd=PROJECT_ROOT,
        timeout=1200,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    return at


@pytest.fixture(scope="module")
def index(site):
    return SiteIndex(json.loads((site / "search" / "search_index.json").read_text("utf-8"))["docs"])


@pytest.mark.parametrize("query", ASKED)
def test_a_question_is_answered_by_the_first_three_hits(index, query):
    first = index.found(query)[:3]
    places = {place for hit in first for place in hit}
    assert places & set(ASKED[query]), first
    for place in ASKED[query]:
        assert place in index.docs, f"{place} is no place of the site"
    assert not any(page.startswith("reference/") for page, _ in first[:2]), first


@pytest.mark.parametrize("name", ["medusa", "eagle", "fast-dllm", "prompt-lookup"])
def test_who_asks_for_a_method_finds_its_page(index, name):
    pages = [page for page, _ in index.found(name.replace("-", " "))[:3]]
    assert f"methods/{name}.html" in pages, pages


def test_a_name_of_the_code_is_found_in_its_module(index):
    (page, at), *_ = index.found("LossCurvePoint")
    assert (page, at) == ("reference/lab.train.html", "reference/lab.train.html#losscurvepoint")


def test_a_module_that_weighed_as_much_as_a_guide_would_come_first(index):
    alike = SiteIndex(
        [{**d, "boost": 1} for d in index.docs.values() if "questions" not in d["location"]]
    )
    assert alike.found("install")[0][0].startswith("reference/")


def test_a_page_loads_nothing_from_elsewhere(site):
    assert (site / "methods" / "auto.html").exists()
    outside = r"""<(?:script[^>]*src|link[^>]*rel="stylesheet"[^>]*href)="?https?:"""
    assert not re.search(outside, (site / "index.html").read_text("utf-8"))


def test_from_every_page_of_a_method_a_link_leads_back(site):
    pages = sorted((site / "methods").glob("*.html"))
    assert len(pages) > 100
    for page in pages:
        article = page.read_text("utf-8").partition("<article")[2]
        begin = article.partition("<h2")[0]
        assert 'href="../methods.html"' in begin, page.name
        assert re.search(r'href="\.\./[a-z-]+\.html">the guide', begin), page.name
