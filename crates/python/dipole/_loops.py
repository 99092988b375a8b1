"""Calls that differ between event loops: those of asyncio, uvloop among them, and of trio, also under anyio."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

_Result = TypeVar("_Result")


def trio() -> Any | None:
    """The module trio if it runs the calling task."""
    module = sys.modules.get("trio")
    return module if module is not None and module.lowlevel.in_trio_task() else None


async def in_thread(function: Callable[..., object], *arguments: object) -> None:
    """Calls a function in another thread, to its end even if the caller is cancelled meanwhile."""
    running = trio()
    if running is None:
        await asyncio.get_running_loop().run_in_executor(None, function, *arguments)
    else:
        await running.to_thread.run_sync(function, *arguments, abandon_on_cancel=True)


async def within(seconds: float, call: Callable[[], Awaitable[_Result]]) -> _Result | None:
    """The result of a call, or None if it takes longer."""
    running = trio()
    if running is not None:
        with running.move_on_after(seconds):
            return await call()
        return None
    try:
        async with asyncio.timeout(seconds):
            return await call()
    except TimeoutError:
        return None
