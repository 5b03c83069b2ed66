"""The log lines of one producer, which begin with its client id."""

from __future__ import annotations

import logging
from typing import Any


class ClientLog(logging.LoggerAdapter[logging.Logger]):
    """Puts `[producer client_id]` before each message, as Java does. `of` is the name of the module that logs."""

    def __init__(self, of: str, client_id: str) -> None:
        super().__init__(logging.getLogger(of))
        self._client_id = client_id

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a message. The other methods (`info`, `warning`, ...) end here."""
        if self.isEnabledFor(level):
            # Without arguments, logging does not format a message; here the client id is always an argument.
            text = str(msg) if args else str(msg).replace("%", "%%")
            kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # the caller's line, not this one
            self.logger.log(level, f"[producer %s] {text}", self._client_id, *args, **kwargs)
