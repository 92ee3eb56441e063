"""Questions to the Hub's API: JSON of bounded size, in bounded time, from the endpoint itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin

from headrace.catalog.connections import split_url
from headrace.catalog.retry import retrying
from headrace.catalog.transport import Reply, Transport, checked_endpoint, is_same_host
from headrace.errors import NotAllowed, Unreachable, plain_url, shown
from headrace.outside_json import PARSED_BYTES, VALUE_BYTES, TooManyValues, parse
from headrace.run import Run

REPLY_BYTES = 16 << 20
"""A page of a listing has 1,000 files and takes half a megabyte."""


@dataclass(frozen=True)
class Answer:
    value: Any
    """As JSON has it."""
    next: str | None
    """The address of the next page."""
    seconds: float
    """How long it was waited for."""


def ask(run: Run, path: str, what: str) -> Answer:
    """The answer to one question, by its path or by the whole address of a next page, with retries."""
    if run.offline:
        raise Unreachable(
            f"{what}: HF_HUB_OFFLINE is set and nothing of it is in the index under {run.cache_dir}; run once online"
        )
    endpoint = checked_endpoint(run.endpoint)
    url = endpoint + path if path.startswith("/") else path
    transport = Transport(endpoint, run.stall_seconds, run.cache_dir / "hf_shards")

    def attempt() -> tuple[bytearray, Reply]:
        with transport.open(url, what, api=True) as reply:
            return reply.read(REPLY_BYTES), reply

    body, reply = retrying(attempt, what)
    return Answer(_parsed(body, what, run), _next(reply, what, run), reply.waited)


def _parsed(body: bytearray, what: str, run: Run) -> Any:
    try:
        return parse(body, PARSED_BYTES // VALUE_BYTES)
    except TooManyValues as error:
        raise Unreachable(
            f"{what}: the answer of {plain_url(run.endpoint)} is too large ({error}); a Hub gives long lists page "
            f"by page"
        ) from error
    except (ValueError, RecursionError) as error:
        raise Unreachable(
            f"{what}: what {plain_url(run.endpoint)} answers is no answer of a Hub (it is not JSON: {shown(error)}); a "
            f"proxy or a login page in between may be the cause"
        ) from error


def _next(reply: Reply, what: str, run: Run) -> str | None:
    for target, words in re.findall(r"<([^<>]*)>([^<]*)", reply.headers.get("link", "")):
        if re.search(r';\s*rel="?next"?\s*(?:[;,]|$)', words):
            try:
                url: str = urljoin(reply.url, target)
                split_url(url)
            except (ValueError, NotAllowed):
                raise Unreachable(f"{what}: its listing goes on at no address at all") from None
            if not is_same_host(run.endpoint, url):
                raise Unreachable(
                    f"{what}: its listing goes on at another host ({plain_url(url)}), where it is not followed; check "
                    f"HF_ENDPOINT"
                )
            return url
    return None
