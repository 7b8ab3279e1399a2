"""One budget for the bytes of all bodies in memory and of all answers that wait to be sent."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, ParamSpec, TypeVar

from fastapi import Request

from qkv.serve._refusals import Refused

# The first bytes of each body and of each answer are not counted, so that a small request is
# answered even if the budget is exhausted. The maximum number of connections limits these bytes.
FREE = 2**16

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass
class Memory:
    """The memory budget of a server.

    Attributes:
        most: the maximum number of bytes that all requests together may hold.
        held: the number of bytes that they hold.
    """

    most: int
    held: int = 0


@dataclass
class Share:
    """The share of the budget that one request holds, for its body and for its answer.

    >>> memory = Memory(most=100)
    >>> share = Share(memory)
    >>> share.hold("body", FREE + 60), share.hold("answer", FREE + 30), memory.held
    (None, None, 90)
    >>> Share(memory).hold("answer", FREE)
    >>> share.free(), memory.held
    (None, 0)
    """

    memory: Memory
    _held: dict[str, int] = field(default_factory=lambda: {"body": 0, "answer": 0})

    def hold(self, part: Literal["body", "answer"], size: int) -> None:
        """Hold `size` bytes for a part, instead of the bytes held so far for this part.

        Raises:
            Refused: 503, if all requests together would hold too many bytes.
        """
        more = max(0, size - FREE) - self._held[part]
        if more > 0 and self.memory.held + more > self.memory.most:
            most = self.memory.most
            problem = f"all requests and answers together hold more than {most} bytes"
            raise Refused(503, f"{problem}: try again later", headers={"Retry-After": "1"})
        self.memory.held += more
        self._held[part] += more

    def free(self) -> None:
        """Return all bytes to the budget."""
        self.memory.held -= sum(self._held.values())
        self._held = dict.fromkeys(self._held, 0)


def hold(request: Request, size: int) -> None:
    """Hold the estimated bytes of an answer, before the answer is computed.

    Raises:
        Refused: 503, if all requests together would hold too many bytes.
    """
    share: Share = request.scope["share"]
    share.hold("answer", size)


async def in_thread(
    function: Callable[Arguments, Result], *args: Arguments.args, **options: Arguments.kwargs
) -> Result:
    """Call a function on another thread, and wait for it even if the client disconnects.

    `asyncio.to_thread` does not wait: the request would free its share and its locks while the
    thread still uses the memory.
    """
    call = asyncio.ensure_future(asyncio.to_thread(function, *args, **options))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        await asyncio.wait([call])
        call.cancelled() or call.exception()  # otherwise, asyncio logs an error that nobody reads
        raise
