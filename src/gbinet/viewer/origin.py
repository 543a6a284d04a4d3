"""Who may open the live viewer's WebSocket: pages that the viewer itself served, and no others.

A browser lets any page connect to a port of this machine, and says in `Origin` which page it is. viser does
not look at it, so we do, in the server that viser starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

# The name must be this machine's too: a foreign name can be made to lead here.
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


@dataclass
class Guard:
    active: bool = False  # whether a server was started under it


@contextmanager
def guarded() -> Iterator[Guard]:
    """Servers of `websockets` that are started inside refuse the pages of others."""
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
    """Whether a page of this very server asks: `Origin` and `Host` name the same, and that is this machine.

    A program that is not a browser may send whatever it likes; without `Origin` it is refused too.
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
