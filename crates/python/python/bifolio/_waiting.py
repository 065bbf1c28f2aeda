"""Awaiting a request: the event loop watches a descriptor, so that no thread is needed."""

import asyncio
import os

from ._native import Future


async def wait(future: Future) -> int:
    """The bytes of a request. A task that is cancelled cancels its request."""
    if future.done():
        return future.result()
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    descriptor = future.event_descriptor()

    def ring() -> None:
        if not over.done():
            over.set_result(None)

    loop.add_reader(descriptor, ring)
    try:
        await over
    except asyncio.CancelledError:
        future.cancel()
        raise
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return future.result()
