"""Where a host name leads: looked up once, and only to addresses of the public internet."""

from __future__ import annotations

import ipaddress
import socket

from headrace.errors import NotAllowed, Unreachable, shown

_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def resolve(host: str, port: int) -> list[str]:
    """Every address of a host."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def dial(address: str, port: int, timeout: float) -> socket.socket:
    """A connection to one address, and no other."""
    return socket.create_connection((address, port), timeout)


def public_addresses(host: str, port: int) -> list[str]:
    """The addresses of a host, if all of them are public: one that is not would do, for who controls the name."""
    try:
        found = resolve(host, port)
    except OSError as error:
        raise Unreachable(f"the host {shown(host)} of a media address is not known ({error.strerror})") from None
    except UnicodeError:
        raise NotAllowed(f"the host {shown(host)} of a media address is no host name") from None
    private = [address for address in found if not is_public(address)]
    if private or not found:
        what = f"resolves to {shown(private[0])}, which is" if private else "has no address that is"
        raise NotAllowed(f"the host {shown(host)} of a media address {what} not an address of the public internet")
    return found


def is_public(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return all(
        one.is_global and not (one.is_multicast or one.is_reserved or one.is_unspecified or one.is_loopback)
        for one in _hidden(address)
    )


def _hidden(address: Address) -> list[Address]:
    """The address, or the IPv4 addresses that lie hidden in one of IPv6."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if address in _NAT64:
        return [ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)]
    found: list[Address] = [address]
    if address.sixtofour is not None:
        found.append(address.sixtofour)
    if address.teredo is not None:
        found.extend(address.teredo)
    return found
