"""What a refusal of the Hub means, in words that say what to do."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.errors import HeadraceError, NotAllowed, NotFound, Unreachable, plain_url, shown

LOGIN = "run `hf auth login`, or set HF_TOKEN to a token that may read it (sent over https only)"


def refusal(status: int, headers: Mapping[str, str], what: str, endpoint: str, with_token: bool) -> HeadraceError:
    """The error for a status that will not heal. `what` is `<repo>@<commit>/<path>`, or whatever was asked for."""
    code = headers.get("x-error-code", "")
    said = headers.get("x-error-message", "")
    tail = f" (the server says: {shown(said)})" if said else ""
    who = "the token in use" if with_token else "a request without a token"
    page = f"{plain_url(endpoint)}/datasets/{shown(what.partition('@')[0])}"
    if code == "GatedRepo":
        return NotAllowed(
            f"{what}: the repo is gated ({status}); accept its terms on {page}, then {LOGIN}{tail}"
            if not with_token
            else f"{what}: the repo is gated and the token in use is not let in ({status}); accept its terms on {page} "
            f"with the same account, or {LOGIN}{tail}"
        )
    if code == "RepoNotFound":
        return NotFound(f"{what}: there is no such repo, or it is private ({status}); check its name, or {LOGIN}{tail}")
    if status == 401:
        return NotAllowed(f"{what}: authentication is needed (401): {who} is not accepted; {LOGIN}{tail}")
    if status == 403:
        return NotAllowed(
            f"{what}: access is refused (403): {who} has no right to it; {LOGIN}, and if {page} asks for it, accept "
            f"the terms there{tail}"
        )
    if status in (404, 410):
        return NotFound(
            f"{what}: not found ({status}); check the name, the split and the revision, and whether the file was "
            f"deleted or the branch rewritten{tail}"
        )
    if status == 451:
        return NotAllowed(f"{what}: not available for legal reasons (451); see {page}{tail}")
    return Unreachable(f"{what}: {plain_url(endpoint)} answered {status}, which asking again will not change{tail}")
