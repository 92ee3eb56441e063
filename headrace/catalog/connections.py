"""The connections of this process: pooled, through proxies where the environment names one, and covered by a `Stop`."""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from headrace.catalog.patience import Patience, wait_with
from headrace.catalog.stop import Cover
from headrace.errors import NotAllowed, SpecError, plain_url
from headrace.floors import note_floor


def is_loopback(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


_ODD = re.compile(r"[\x00-\x1f\x7f\\]")


def split_url(url: str, *, login: bool = False) -> SplitResult:
    """The parts of an address, which must mean the same to the client that connects to it.

    Only the address of a proxy may have a user name (`login`).
    """
    what = "a proxy (HTTP_PROXY, HTTPS_PROXY) has an address" if login else "an address was given or redirected to"
    try:
        parts = urlsplit(url)
        agreed = (parts.hostname, parts.port) == (None, None) or _as_the_client(url) == _as_the_client(_origin(parts))
    except ValueError:
        raise NotAllowed(f"{what} that is not one; it is not followed") from None
    if _ODD.search(url) or re.search(r"\s", parts.netloc) or not agreed:
        raise NotAllowed(
            f"{what} that can be read in more than one way (a backslash, a space or a control character may be the "
            f"cause; in a password write it as %5C, %20 and so on); it is not followed"
        )
    if "@" in parts.netloc and not login:
        raise NotAllowed("an address with a user name or password was given or redirected to; it is not followed")
    return parts


def _origin(parts: SplitResult) -> str:
    """Scheme, host and port as we read them."""
    host = parts.hostname or ""
    port = "" if parts.port is None else f":{parts.port}"
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}"


def _as_the_client(url: str) -> tuple[str | None, str | None, int | None]:
    """Scheme, host and port as urllib3 reads them, which connects to the host."""
    found = urllib3.util.parse_url(url)
    return found.scheme, found.host, found.port


class _Thread(threading.local):
    cover: Cover | None = None
    patience: Patience | None = None


_THREAD = _Thread()


@contextmanager
def covered_by(cover: Cover, patience: Patience) -> Iterator[None]:
    """Requests of this thread are under `cover`, also while they connect, and are waited for with `patience`."""
    _THREAD.cover, _THREAD.patience = cover, patience
    try:
        yield
    finally:
        _THREAD.cover = _THREAD.patience = None


class _Plain(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        return _covered(self, super()._new_conn())

    def getresponse(self) -> urllib3.HTTPResponse:  # type: ignore[override]
        _covered(self, self.sock)
        return super().getresponse()


class _Secure(HTTPSConnection):
    def _new_conn(self) -> socket.socket:
        return _covered(self, super()._new_conn())

    def getresponse(self) -> urllib3.HTTPResponse:  # type: ignore[override]
        _covered(self, self.sock)
        return super().getresponse()


def _covered(connection: HTTPConnection, sock: socket.socket) -> socket.socket:
    if _THREAD.cover is not None and sock is not None:
        _THREAD.cover.watch(sock)
    if _THREAD.patience is not None:
        wait_with(_THREAD.patience, connection)
    return sock


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _Plain


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _Secure


_QUERY = re.compile(r"\?.*", re.DOTALL)


class _NoQueries(logging.Filter):
    """urllib3 logs request lines at debug level; those of ours lose their query."""

    def filter(self, record: logging.LogRecord) -> bool:
        if _THREAD.cover is not None and isinstance(record.args, tuple):
            record.args = tuple(
                re.sub(r"\?.*", "", a, flags=re.DOTALL) if isinstance(a, str) else a for a in record.args
            )
        return True


for _name in ("urllib3.connection", "urllib3.connectionpool"):
    logging.getLogger(_name).addFilter(_NoQueries())

_MANAGERS: dict[str | None, urllib3.PoolManager] = {}
"""By proxy."""
_FORKED: list[object] = []


def manager_for(url: str) -> urllib3.PoolManager:
    """The connections of this process to a proxy, or directly to servers."""
    proxy = _proxy(url)
    manager = _MANAGERS.get(proxy)
    # Two threads may get here at once; setdefault gives both the same one.
    return _MANAGERS.setdefault(proxy, _new_manager(proxy)) if manager is None else manager


def _in_forked_child() -> None:
    """A forked child must not speak on its parent's connections, and has its own table from its first instant.

    The parent's are kept and never used: closing them takes their locks, which a thread that exists only in the parent
    may have held.
    """
    global _MANAGERS
    _FORKED.append(_MANAGERS)
    _MANAGERS = {}


os.register_at_fork(after_in_child=_in_forked_child)


def is_untrusted(error: BaseException) -> bool:
    """Whether an error of an HTTP client says that a certificate is not trusted, which no time heals."""
    return any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes_of(error))


def is_broken_connection(error: BaseException) -> bool:
    """Whether an error of an HTTP client says that a server was not reached, or not to the end, which time may heal."""
    kinds = ConnectionError | TimeoutError | socket.gaierror | ssl.SSLError
    return any(isinstance(cause, kinds) for cause in causes_of(error)) and not is_untrusted(error)


def causes_of(error: BaseException) -> list[BaseException]:
    """An error and all errors in it, however deep: clients wrap those of the socket in several of their own."""
    seen: list[BaseException] = [error]
    for one in seen:  # grows meanwhile
        inner = (one.__cause__, one.__context__, *one.args)
        seen += [e for e in inner if isinstance(e, BaseException) and not any(e is other for other in seen)]
    return seen


def tls_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not context.cert_store_stats()["x509_ca"]:
        # Slim containers have no certificates of their own.
        try:
            import certifi
        except ImportError:
            pass
        else:
            context.load_verify_locations(certifi.where())
    return context


def _new_manager(proxy: str | None) -> urllib3.PoolManager:
    note_floor("urllib3", metadata.version("urllib3"))
    context = tls_context()
    if proxy is None:
        manager = urllib3.PoolManager(num_pools=16, maxsize=8, ssl_context=context)
    else:
        parts = split_url(proxy, login=True)
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else None
        manager = urllib3.ProxyManager(
            f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}",
            num_pools=16,
            maxsize=8,
            ssl_context=context,
            proxy_headers=urllib3.make_headers(proxy_basic_auth=login) if login else None,
        )
    manager.pool_classes_by_scheme = {"http": _PlainPool, "https": _SecurePool}
    return manager


def _proxy(url: str) -> str | None:
    """The proxy that the environment names for this address; never one for this machine itself."""
    parts = split_url(url)
    host = parts.hostname or ""
    if is_loopback(host) or proxy_bypass(host):
        return None
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy:
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if split_url(proxy, login=True).scheme not in ("http", "https"):
        raise SpecError(
            f"proxy {plain_url(proxy)!r}: only http and https proxies can be used; see HTTPS_PROXY, NO_PROXY"
        )
    return proxy


def may_use_proxy(url: str) -> bool:
    """Whether another client (requests, httpx) may ask a proxy for this address. They agree on few forms of NO_PROXY,
    so that only `*` and the host itself count."""
    parts = split_url(url)
    proxies = getproxies()
    if not (proxies.get(parts.scheme) or proxies.get("all")):
        return False
    excepted = [name.strip().lower() for name in proxies.get("no", "").split(",")]
    return excepted != ["*"] and parts.hostname not in excepted
