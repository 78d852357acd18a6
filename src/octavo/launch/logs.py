"""Logs of all processes: one line a record, to stderr, level by OCTAVO_LOG_LEVEL."""

from __future__ import annotations

import contextlib
import logging
import sys

from octavo import env
from octavo.errors import ConfigError
from octavo.util.lines import one_line

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class _Line(logging.Formatter):
    """`17:04:31 warning core.engine: text`, always one line; a traceback follows only at level debug."""

    def format(self, record: logging.LogRecord) -> str:
        if record.exc_info and not env.is_debug():
            record = logging.makeLogRecord({**record.__dict__, "exc_info": None, "exc_text": None})
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's name)
        return one_line(super().formatMessage(record))


def say(text: str) -> None:
    """A line for who started this, on stderr. Nobody may be there to read it: then it is not said."""
    with contextlib.suppress(OSError, ValueError):  # a broken pipe, a closed file
        print(text, file=sys.stderr, flush=True)


def set_up() -> None:
    """Raises ConfigError for a level that does not exist."""
    level = env.log_level()
    if level not in LEVELS:
        raise ConfigError(f"OCTAVO_LOG_LEVEL is {level!r}", fix=f"allowed is {', '.join(LEVELS)}")
    for value, name in (
        (logging.DEBUG, "debug"),
        (logging.INFO, "info"),
        (logging.WARNING, "warning"),
        (logging.ERROR, "error"),
    ):
        logging.addLevelName(value, name)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("octavo").setLevel(LEVELS[level])
