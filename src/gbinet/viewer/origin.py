"""Lets only the live viewer's own page open its WebSocket.

A browser lets any page connect to a port of this machine, and names the page in the header `Origin`. viser
does not check it, so it is checked here, in the server that viser starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

# The host must be one of these names: the owner of another name can make it resolve to this machine.
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


@dataclass
class Guard:
    active: bool = False  # whether it guards a server


@contextmanager
def guarded() -> Iterator[Guard]:
    """Servers of `websockets` that are started inside this block refuse pages of other servers."""
    from websockets.asyncio import server

    guard, plain = Guard(), server.serve

    def serve(*arguments: Any, process_request: Any = None, **options: Any) -> Any:
        guard.active = True
        return plain(*arguments, process_request=_checked(process_request), **options)

    server.serve = serve  # viser has no setting for this
    try:
        yield guard
    finally:
        server.serve = plain


def _checked(answer: Callable[[Any, Any], Any] | None) -> Callable[[Any, Any], Any]:
    def process_request(connection: Any, request: Any) -> Any:
        if "Upgrade" in request.headers and not own_page(request.headers):
            return connection.respond(HTTPStatus.FORBIDDEN, "Only the viewer's own page may connect.\n")
        return None if answer is None else answer(connection, request)

    return process_request


def own_page(headers: Any) -> bool:
    """Whether a request is from a page of this server: `Origin` and `Host` agree, and name this machine.

    Requests without `Origin` are refused too. Programs other than browsers can send any header.
    """
    origins, hosts = headers.get_all("Origin"), headers.get_all("Host")
    if len(origins) != 1 or len(hosts) != 1:
        return False
    try:
        page = urlsplit(origins[0])
        return (
            page.scheme in ("http", "https")
            and page.netloc.lower() == hosts[0].lower()
            and page.hostname in _THIS_MACHINE
        )
    except ValueError:  # not an address
        return False
