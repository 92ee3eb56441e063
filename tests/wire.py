"""A client that takes what comes over the wire as it is."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit


class Reply:
    """What came over the wire, up to where it broke off."""

    def __init__(self, url: str, method: str = "GET", timeout: float = 10, **headers: str) -> None:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.netloc, timeout=timeout)
        self.error: Exception | None = None
        self.status, self.body = 0, b""
        try:
            target = parts.path + (f"?{parts.query}" if parts.query else "")
            connection.request(method, target, headers={name.replace("_", "-"): text for name, text in headers.items()})
            response = connection.getresponse()
            self.status = response.status
            self.headers = {name.lower(): value for name, value in response.getheaders()}
            while piece := response.read1(65536):
                self.body += piece
            if response.length:
                self.error = http.client.IncompleteRead(self.body, response.length)
        except (http.client.HTTPException, OSError) as error:
            self.error = error
        finally:
            connection.close()
