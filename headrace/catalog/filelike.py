"""Something that pyarrow may take for a file."""

from __future__ import annotations

import io


class FileLike(io.RawIOBase):
    """A place in so many bytes; a subclass says what `read` gives there."""

    def __init__(self, size: int) -> None:
        self.size, self.at = size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset + (self.size if whence == 2 else self.at if whence == 1 else 0)
        return self.at
