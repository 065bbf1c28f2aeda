"""Awaiting a request: the event loop watches a descriptor, so that no thread is needed."""

import asyncio
import os

from ._native import Future


async def wait(future: Future) -> int:
    """The bytes of a request. A task that is cancelled cancels its request, and ends when the request is over:
    until then bytes land in the buffer, which is not the task's to use or to give back."""
    if future.done():
        return future.result()
    loop = asyncio.get_running_loop()
    over = loop.create_future()

    def ring() -> None:
        if not over.done():
            over.set_result(None)

    descriptor = future.event_descriptor()
    try:
        loop.add_reader(descriptor, ring)
        await _until(over, future)
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return future.result()


async def _until(over: "asyncio.Future[None]", future: Future) -> None:
    cancelled = None
    while not over.done():
        try:
            # Cancelling the task must not end what it waits for.
            await asyncio.shield(over)
        except asyncio.CancelledError as error:
            future.cancel()
            # The first one has the words of whoever cancelled.
            cancelled = cancelled or error
    if cancelled is not None:
        try:
            raise cancelled
        finally:
            # The exception knows this frame: without this, each would keep the other.
            cancelled = None
