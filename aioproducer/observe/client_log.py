"""One producer's log, which prefixes each line with the client id and keeps the last warnings."""

from __future__ import annotations

import logging
from collections import deque
from datetime import UTC, datetime
from typing import Any

MOST_WARNINGS = 50


class RecentWarnings:
    """Keeps the last lines at WARNING and above for describe(), even if the program's logging discards them."""

    def __init__(self) -> None:
        self._lines: deque[tuple[datetime, int, str]] = deque(maxlen=MOST_WARNINGS)

    def add(self, level: int, msg: object, args: tuple[object, ...]) -> None:
        """Keep a line. Format it now, because an argument (a producer, an error) may change later."""
        try:
            line = str(msg) % args if args else str(msg)
        except Exception:  # the logging module reports this mistake
            line = str(msg)
        self._lines.append((datetime.now(UTC), level, line))

    def described(self) -> tuple[dict[str, str], ...]:
        """Return the time, level and text of each line, oldest first. Any thread may call it."""
        return tuple(
            {
                "time": time.isoformat(timespec="milliseconds"),
                "level": logging.getLevelName(level),
                "line": line,
            }
            for time, level, line in self._lines.copy()
        )


class ClientLog(logging.LoggerAdapter[logging.Logger]):
    """Prefixes each message with `[producer client_id]`, as Java does. `of` is the name of the module that logs."""

    def __init__(self, of: str, client_id: str, recent: RecentWarnings | None = None) -> None:
        super().__init__(logging.getLogger(of))
        self._client_id = client_id
        self._recent = recent

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a message. The other methods (`info`, `warning`, ...) call this one."""
        if level >= logging.WARNING and self._recent is not None:
            self._recent.add(level, msg, args)
        if self.isEnabledFor(level):
            # Without arguments, logging does not format a message; here the client id is always an argument.
            text = str(msg) if args else str(msg).replace("%", "%%")
            kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # report the caller's line, not this one
            self.logger.log(level, f"[producer %s] {text}", self._client_id, *args, **kwargs)
