"""`LocalHub`: a Hugging Face Hub on the loopback device, for tests."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.testing.hub.answers import Answer, Asked, RepoFile
from headrace.testing.hub.blobs import Files, make_blobs
from headrace.testing.hub.faults import Action, Exchange, Fault, FaultRules, Status
from headrace.testing.hub.log import Kind, Line, Origin, Request, RequestLog
from headrace.testing.hub.repos import Repos, Restriction, Tree
from headrace.testing.hub.routes import Routes, Signer, kind_of
from headrace.testing.hub.server import OriginServer, refusal_of_bug

_NO_PROXY = "127.0.0.1,localhost"


class LocalHub:
    """Serves dataset repos from folders or from memory, the way the Hub does, and fails the way a test tells it to.

        with LocalHub() as hub:
            hub.push("me/rows", {"train.jsonl": b'{"a": 1}\\n'})
            HfApi(endpoint=hub.endpoint).dataset_info("me/rows")

    Each folder `root/<namespace>/<name>` is a repo from the start, on branch "main". With `cdn`, large files are
    redirected to a second origin by a signed address that expires. Requests with one of `tokens` may see restricted
    repos; on all others a token changes nothing.
    """

    def __init__(
        self,
        root: str | Path | None = None,
        *,
        tokens: Sequence[str] = ("hf_local",),
        cdn: bool = False,
        page_size: int = 1000,
    ) -> None:
        if page_size < 1:
            raise ValueError(f"page_size is {page_size}, but a page needs at least one entry")
        self._tokens = frozenset(tokens)
        self._repos = Repos()
        self._signer = Signer()
        self._log = RequestLog()
        self._rules = FaultRules()
        self._routes = Routes(self._repos, self._signer, page_size)
        self._cdn: OriginServer | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._pid = os.getpid()
        for folder in sorted(Path(root).glob("*/*")) if root is not None else ():
            if folder.is_dir():
                self.push(f"{folder.parent.name}/{folder.name}", folder)
        self._hub = OriginServer("hub", self._respond, self._tokens)
        self.endpoint = self._routes.endpoint = self._hub.endpoint
        if cdn:
            self._start_cdn()
            self._routes.redirect_lfs = self._signed_address

    @property
    def cdn_endpoint(self) -> str | None:
        """The second origin; None until something has needed it."""
        return self._cdn.endpoint if self._cdn else None

    @property
    def signed_seconds(self) -> float:
        """How long a signed address is good for. With 0, each is too old at once."""
        return self._signer.seconds

    @signed_seconds.setter
    def signed_seconds(self, seconds: float) -> None:
        self._signer.seconds = seconds

    def push(self, repo_id: str, files: Files, *, branch: str = "main") -> str:
        """Commit exactly these files, and return the commit's id, which depends on them and on the parent only.

        `files` is a folder, or maps in-repo paths to bytes or to files on disk. Older commits stay served. Files on
        disk are read when they are asked for, so they must not be changed afterwards: a changed one is answered by 410.
        `branch` may also be a full ref, such as "refs/convert/parquet" or "refs/tags/v1".
        """
        return self._repos.push(repo_id, Tree(make_blobs(files)), branch).id

    def restrict(self, repo_id: str, how: Restriction | None) -> None:
        """Ask for a token: "private" hides the repo, "gated" refuses all, "gated-files" still shows info and tree."""
        self._repos.restrict(repo_id, how)

    def rename(self, old: str, new: str) -> None:
        """Give a repo a new name. Requests for the old one are redirected."""
        self._repos.rename(old, new)

    def fault(
        self,
        match: str,
        action: Action | int,
        *,
        nth: int | Collection[int] | None = None,
        times: int | None = None,
        method: str | None = None,
        origin: Origin | None = None,
    ) -> Fault:
        """Let something go wrong with requests whose path, unquoted and without query, fits the glob `match`.

        A number is short for `Status(number)`. `nth` chooses among the requests that match and that the action can act
        on, counted from 1; `times` ends the rule after so many hits. Without either, it acts on all.
        """
        if isinstance(action, int):
            action = Status(action)
        if not isinstance(action, Action):
            raise TypeError(f"{action!r} is no action: it needs the methods acts_on() and act(), as Status(503) has")
        chosen = (nth,) if isinstance(nth, int) else nth
        if chosen is not None and any(number < 1 for number in chosen):
            raise ValueError(f"nth is {nth!r}, but requests are counted from 1")
        return self._rules.add(Fault(match, action, chosen, times, method and method.upper(), origin))

    def clear_faults(self) -> None:
        self._rules.clear()

    @property
    def requests(self) -> list[Request]:
        """All requests so far, in the order in which they were answered."""
        return self._log.snapshot()

    def clear_log(self) -> None:
        self._log.clear()

    def count(self, *, kind: Kind | None = None, method: str | None = None, path: str | None = None) -> int:
        """How many requests there were of a kind, with a method, with a path that fits a glob."""
        return self._log.count(kind=kind, method=method, path=path)

    def env(self) -> dict[str, str]:
        """What a child process needs in its environment for its clients to use this Hub."""
        return {
            "HF_ENDPOINT": self.endpoint,
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1",
            "NO_PROXY": _NO_PROXY,
            "no_proxy": _NO_PROXY,
        }

    def close(self) -> None:
        """End all connections and threads. May be called more than once."""
        with self._lock:
            # A forked child has neither the threads nor the sockets.
            if self._closed or os.getpid() != self._pid:
                return
            self._closed = True
        self._hub.close()
        if self._cdn is not None:
            self._cdn.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _respond(self, origin: Origin, asked: Asked, arrived: float) -> tuple[Answer, Line]:
        path = "/" + "/".join(asked.segments)
        try:
            answer = self._routes.answer(origin, asked)
            self._rules.act_on(Exchange(asked.method, path, origin, asked.headers, answer, self._signed_address))
        except Exception as error:
            answer = refusal_of_bug(error)
        request = Request(
            time=arrived,
            method=asked.method,
            path=path,
            query=asked.raw_query,
            origin=origin,
            kind=kind_of(origin, asked.segments),
            headers={name: value for name, value in asked.headers.items() if name != "authorization"},
            authorized="authorization" in asked.headers,
            token_ok=asked.token_ok,
            status=0 if answer.trouble.after == -1 else answer.status,
        )
        return answer, self._log.add(request)

    def _start_cdn(self) -> OriginServer:
        with self._lock:
            if self._closed:
                raise RuntimeError("this Hub is closed")
            if self._cdn is None:
                self._cdn = OriginServer("cdn", self._respond, self._tokens)
            return self._cdn

    def _signed_address(self, file: RepoFile) -> str:
        return self._start_cdn().endpoint + self._signer.sign(file)
