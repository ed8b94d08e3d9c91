"""A small model, a server of it, and a client: what most files here begin with."""

import pytest

import polydec


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield polydec.load("zoo:tiny")


@pytest.fixture(scope="module")
def server(lm):
    import house  # it needs polydec[serve], without which the files here skip themselves

    with house.served({"tiny": lambda: lm}) as served:
        yield served


@pytest.fixture(scope="module")
def http(server):
    with server.client() as client:
        yield client
