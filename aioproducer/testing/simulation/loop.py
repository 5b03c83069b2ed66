"""An event loop with virtual time and a network in memory: the same seed gives the same run, byte for byte.

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with EmbeddedCluster(3, clock=loop.wall_time, random=Random(1)) as cluster: ...

    simulate(main, seed=1)

Nothing waits for a real clock, a real socket or a thread: once all work due at the current time is done, the clock
jumps to the next timer. Code runs unmodified in this loop if it uses `loop.time()` for time and a seeded
`random.Random` for randomness, and never iterates over a set."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

from aioproducer.testing.simulation.network import SimulatedNetwork, SimulatedServer
from aioproducer.testing.simulation.transport import SimulatedTransport

T = TypeVar("T")

BEGIN = 1_000.0
"""The loop time at the start, in seconds. It is not 0, which would hide bugs in code that takes 0.0 for "never"."""

WALL_BEGIN = 1_700_000_000.0 - BEGIN
"""The difference between `SimulatedLoop.wall_time`, in seconds since 1970, and the loop's time."""

TURNS_AT_ONE_MOMENT = 100_000
"""After more iterations than this without progress in virtual time, the loop is considered busy forever."""


GRACE = 3600.0
"""How many virtual seconds cancelled tasks may take to end after a run has stalled."""


class SimulationStalled(AssertionError):
    """Nothing will ever happen again, virtual time is not advancing, or the time limit has passed.

    The error text names the tasks that have not ended.
    """


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop whose clock jumps to the next timer, and whose tasks can connect only to each other."""

    def __init__(
        self, seed: int = 0, *, network: SimulatedNetwork | None = None, time_limit: float = 1e6
    ) -> None:
        """Create a loop that is not running.

        Args:
            seed: determines every latency and the pieces in which bytes arrive.
            network: how connections behave; by default, with latencies like a loopback interface's.
            time_limit: virtual seconds after which the run is considered stuck.
        """
        super().__init__()
        self.random = Random(seed)
        """The network's source of random numbers, which other code can also use."""
        self.network = network or SimulatedNetwork()
        self.network.attach(self, self.random)
        self.thread_delay = (0.0, 0.0005)
        """The minimum and maximum number of seconds that a call in an executor takes."""
        self._now = BEGIN
        self._end = BEGIN + time_limit
        self._turns = 0
        self._selector = self  # BaseEventLoop calls select() on it
        self._clock_resolution = 1e-9

    # The clock

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._now

    def wall_time(self) -> float:
        """Return the virtual time in seconds since 1970, for `EmbeddedCluster(clock=...)`."""
        return WALL_BEGIN + self._now

    def select(self, timeout: float | None) -> list[Any]:
        """Advance the clock by `timeout`. The base class calls this once per iteration."""
        if timeout is None:
            raise self._stalled("no task can run, and no timer is set")
        if timeout > 0:
            self._now += timeout
            self._turns = 0
            if self._now > self._end:
                raise self._stalled(f"not finished after {self._now - BEGIN:g} s")
        else:
            self._turns += 1
            if self._turns > TURNS_AT_ONE_MOMENT:
                raise self._stalled("the tasks never stop running, so the clock does not advance")
        return []

    def _stalled(self, what: str) -> SimulationStalled:
        # The caller that catches this error cancels the tasks, which takes a few more iterations.
        self._turns = 0
        self._end = self._now + GRACE
        names = sorted(task.get_name() for task in asyncio.all_tasks(self))
        return SimulationStalled(f"{what}; tasks: {', '.join(names) or 'none'}")

    def _process_events(self, event_list: list[Any]) -> None:
        """Do nothing: there are no events."""

    def _write_to_self(self) -> None:
        """Do nothing: the loop never sleeps."""

    # The methods of an event loop

    async def getaddrinfo(  # type: ignore[override]  # fewer kinds of arguments than the real one takes
        self, host: str, port: int, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[tuple[Any, ...]]:
        """Return the addresses that the network's name server has for the host."""
        addresses = await self.network.resolve(host)
        return [
            (
                socket.AF_INET6 if ":" in address else socket.AF_INET,
                socket.SOCK_STREAM,
                6,
                "",
                (address, port),
            )
            for address in addresses
        ]

    def run_in_executor(  # type: ignore[override]  # the base class declares it with TypeVarTuple
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call `func` immediately, in this thread. Its result arrives a little later, as if from another thread."""
        future: asyncio.Future[T] = self.create_future()
        try:
            result = func(*args)
        except Exception as error:
            self.call_later(self.random.uniform(*self.thread_delay), _end, future, None, error)
        else:
            self.call_later(self.random.uniform(*self.thread_delay), _end, future, result, None)
        return future

    async def create_connection(  # type: ignore[override]  # only what aioproducer uses
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[SimulatedTransport, asyncio.BaseProtocol]:
        """Connect to a server in this loop. Raises OSError if no server is listening there."""
        return await self.network.connect(protocol_factory, host, port)

    async def create_server(  # type: ignore[override]  # only what aioproducer uses
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        start_serving: bool = True,
        ssl: None = None,
    ) -> SimulatedServer:
        """Create a server for connections in this loop. Raises OSError if the port is taken."""
        assert ssl is None, "TLS is not supported in a simulation"
        server = self.network.listen(protocol_factory, host, port)
        if start_serving:
            await server.start_serving()
        return server


def _end(future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def simulate(
    main: Callable[[], Coroutine[Any, Any, T]],
    *,
    seed: int = 0,
    network: SimulatedNetwork | None = None,
    time_limit: float = 1e6,
) -> T:
    """Run a coroutine to completion in virtual time.

    Args:
        main: a function that creates the coroutine; in it, `asyncio.get_running_loop()` returns the SimulatedLoop.
        seed: the same seed gives the same run.
        network: the network, as for SimulatedLoop.
        time_limit: virtual seconds after which the run is considered stuck.

    Raises:
        SimulationStalled: nothing will ever happen again, virtual time is not advancing, or the time limit has passed.
    """
    with asyncio.Runner(
        loop_factory=lambda: SimulatedLoop(seed, network=network, time_limit=time_limit), debug=False
    ) as runner:
        return runner.run(main())
