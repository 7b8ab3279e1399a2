"""The API keys of a server, in a file that is read again when it changes."""

import hashlib
import hmac
import logging
import os
import warnings

from qkv.files import ordinary

_log = logging.getLogger("qkv.serve")


class Keys:
    """The keys in a file, one on each line.

    If the changed file has no valid keys or cannot be read, the log names the reason, and the
    server continues with the earlier keys.

    Args:
        path: the file.

    Raises:
        ValueError: the file has no key, or a line is not a single word of ASCII characters.
        OSError: the file cannot be read.
    """

    def __init__(self, path: str) -> None:
        self._path, self._state = path, _state_of(path)
        self._digests = [_digest(key) for key in read_keys(path)]
        if os.name == "posix" and os.stat(path).st_mode & 0o022:
            message = f"other users may write to {path} and add keys: run chmod go-w on it"
            warnings.warn(message, UserWarning, stacklevel=3)

    def allow(self, key: bytes) -> bool:
        """Return whether the file has this key; first read the file again if it has changed."""
        if (state := _state_of(self._path)) != self._state:
            self._state = state
            try:
                self._digests = [_digest(known) for known in read_keys(self._path)]
            except (OSError, ValueError) as error:
                _log.error("the earlier keys remain valid: %s", error)
                if isinstance(error, OSError):  # for example, too many files are open
                    self._state = None  # the next request reads the file again
        digest = _digest(key)
        # a list, so that the time does not depend on the position of the key
        return any([hmac.compare_digest(digest, known) for known in self._digests])


def read_keys(path: str) -> list[bytes]:
    """Read the keys in a file, without spaces around them and without empty lines.

    Raises:
        ValueError: the file has no key, or a line is not a single word of ASCII characters.
        OSError: the file cannot be read.
    """
    lines = [line.strip() for line in ordinary(path).read_bytes().splitlines()]
    keys = [line for line in lines if line]
    if not keys or not all(0x21 <= byte <= 0x7E for key in keys for byte in key):
        way = "write one word of ASCII letters and digits on each line"
        raise ValueError(f"{path} has {'a line that is not a key' if keys else 'no key'}: {way}")
    return keys


def _state_of(path: str) -> tuple[int, ...] | None:
    """Return numbers that change when a file is written or replaced; None if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _digest(key: bytes) -> bytes:
    """Hash a key, so that the time of a comparison does not depend on the key's length."""
    return hashlib.sha256(key).digest()
