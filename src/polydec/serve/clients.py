"""Who sends a request: what is kept of one client's texts is no other's, and each client has its share of the server."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from starlette.types import Scope

HEADER = "x-polydec-client"
"""In which a front tells its replicas whose request it hands on; nobody else is believed."""

_FIELD = "polydec.client"
"""Where the gate notes it in a request's scope."""


@dataclass(frozen=True)
class ClientIdentity:
    """Who sends a request.

    Attributes:
        credential: Names the API key that the request came with, "" where the server has none: then
            all clients are one, as far as cached texts go.
        address: Where it came from; an IPv6 address without the half that a client may choose.
        label: What the log calls it: a name, or a short digest of its key. "": its address.
    """

    credential: str = ""
    address: str = ""
    label: str = ""

    @property
    def account(self) -> str:
        """Whose share of the server its requests take."""
        return self.credential or self.address

    def cache_salt(self, asked: str) -> str:
        """Compute the salt under which the client's texts are cached.

        Args:
            asked: The salt that the request itself gives.

        Returns:
            The salt, which no other credential can have.
        """
        if self.credential:
            return f"{self.credential}:{asked}"
        return asked

    def to_header(self) -> str:
        """For a replica."""
        # Either may be empty, and the value of a header neither begins nor ends with a space.
        return f"{self.credential},{self.address}"


def client_of(scope: Scope) -> ClientIdentity:
    """Who sent a request that has come through the gate."""
    return scope.get(_FIELD, ClientIdentity())


def attach_client(scope: Scope, client: ClientIdentity) -> None:
    """Note who sent a request; the gate does so.

    Args:
        scope: The request's scope, which is written to.
        client: Who sent it.
    """
    scope[_FIELD] = client


def from_header(text: str) -> ClientIdentity:
    """What `to_header` wrote."""
    credential, _, address = text.partition(",")
    return ClientIdentity(credential, address)


def address_of(scope: Scope) -> str:
    """Where a request came from; "" where the connection does not say."""
    host = (scope.get("client") or ("",))[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if not isinstance(address, ipaddress.IPv6Address):
        return str(address)
    # An IPv4 client of a socket for both families is the same client as on its own socket.
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    # A provider gives a client 2^64 addresses: all of them share one account.
    return str(ipaddress.ip_network((address, 64), strict=False).network_address)
