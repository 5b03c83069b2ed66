"""Connects to one broker: opens the socket, does the TLS handshake, negotiates versions, and authenticates.

request_stream.py handles the requests and responses."""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from aioproducer.concurrency.tasks import new_task
from aioproducer.config import ProducerConfig
from aioproducer.errors import BrokerConnectionError, KafkaError, NotKafkaError
from aioproducer.metrics import Metrics
from aioproducer.network.connection_state import ConnectionState
from aioproducer.network.dialer import answers_tls, dial, shake_hands
from aioproducer.network.handshake import learn_versions
from aioproducer.network.request_stream import RequestStream
from aioproducer.network.wire import TlsWire, Wire
from aioproducer.observe.hooks import NO_HOOKS, Hooks
from aioproducer.protocol.api import CLIENT_VERSIONS, ApiKey
from aioproducer.protocol.frame import MAX_FRAME
from aioproducer.protocol.messages import ApiVersionsRequest, ApiVersionsResponse
from aioproducer.protocol.schema import Message
from aioproducer.security.addresses import is_loopback
from aioproducer.security.authentication import Authentication
from aioproducer.security.login import Login
from aioproducer.security.sasl import Mechanism
from aioproducer.security.tls import certificate_name, handshake_error
from aioproducer.types import Node

TLS_PROBE_TIMEOUT = 1.0
"""The maximum number of seconds spent finding out whether a port that closed the connection requires TLS."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The parameters that differ between attempts to connect."""

    address: tuple[str, int] | None = None
    """The address to connect to; None for the node's own address."""
    passed_over: int = 0
    """The number of addresses to move from the start of the host name's list to its end, so that they are tried
    last."""
    first_asked: int = CLIENT_VERSIONS[ApiKey.API_VERSIONS].max
    """The version of the first ApiVersions request."""
    setup_timeout: float | None = None
    """The time limit for each set-up step, in seconds; None for the configured one. `request_timeout` also limits each
    response during set-up."""
    renew_at: float = 0.85
    """The fraction of a session's lifetime after which the connection re-authenticates."""


DEFAULT_ATTEMPT = Attempt()


class Connection(RequestStream):
    """A connection to one broker. Passes itself to `on_change` whenever `can_send` may have changed.

    A closed connection stays closed; Brokers creates a new one for each attempt to connect. A connection belongs to
    one event loop.
    """

    def __init__(
        self,
        node: Node,
        config: ProducerConfig,
        attempt: Attempt = DEFAULT_ATTEMPT,
        *,
        on_change: Callable[[RequestStream], None],
        metrics: Metrics,
        hooks: Hooks = NO_HOOKS,
        login: Login | None = None,
    ) -> None:
        """Create the connection without opening it.

        Args:
            node: the broker, with its id (negative for a bootstrap address) and the name that its certificate must
                match.
            config: the settings.
            attempt: the parameters of this attempt to connect.
            on_change: called with the connection whenever `can_send` may have changed.
            metrics: the counters to update.
            hooks: the hooks to call for requests.
            login: credentials and certificates, shared by all connections of a producer.
        """
        super().__init__(node, config, on_change=on_change, metrics=metrics, hooks=hooks)
        self._attempt = attempt
        self._address = attempt.address or (node.host, node.port)
        self._login = login or Login(config)
        self._setup_timeout = attempt.setup_timeout or config.socket_connection_setup_timeout
        self._answer_timeout = min(self._setup_timeout, config.request_timeout)
        """The time limit in seconds for each response during the handshake, and for the whole TLS handshake."""
        self._authentication = Authentication(
            self._login, self, host=node.host, timeout=self._setup_timeout, renew_at=attempt.renew_at
        )
        self._opened_at = math.inf
        """The loop time at which the socket began to open, after certificates were read and the name was resolved."""
        self._first_request = -1
        """The correlation id of the first request after the handshake."""

    async def connect(self) -> None:
        """Open the socket, do the handshake, and authenticate. If the call is cancelled, nothing is left open.

        Each step is limited by the set-up timeout, and each response also by `request_timeout`.

        Raises:
            BrokerConnectionError: the port does not accept connections, the connection was lost, or a step timed out.
            NotKafkaError: the peer is not a Kafka broker, or it requires TLS.
            AuthenticationError: the broker rejects our credentials, or we reject its certificate.
            BrokerError: the broker rejects the handshake.
            ConfigError: certificates can't be read.
        """
        await self.reach()
        await self.authenticate()

    async def reach(self) -> None:
        """Do the first part of `connect`: open the socket, do the TLS handshake, and negotiate versions.

        Raises:
            KafkaError: the same errors as `connect`.
        """
        try:
            self._wire = wire = await self._dial()
            self._advance(ConnectionState.TLS)
            await shake_hands(wire, self, self._answer_timeout)
            self._reader_task = new_task(self._loop, self._watch(wire), f"aioproducer reader of {self.node}")
            self._advance(ConnectionState.NEGOTIATING)
            self.versions = await learn_versions(self._ask_versions, self, self._attempt.first_asked)
            self._advance(ConnectionState.AUTHENTICATING)
        except GeneratorExit:
            raise  # the coroutine is discarded with its loop: nothing can be awaited
        except BaseException as error:
            await self._give_up(error)
            raise

    async def authenticate(self) -> None:
        """Do the second part of `connect`: authenticate. The connection is ready for use afterwards."""
        try:
            if self._login.uses_sasl:
                authentication = self._authentication
                ask = partial(self._ask, timeout=self._answer_timeout)
                await authentication.run(await authentication.credentials(), ask, self.versions)
            self._frame_limit = MAX_FRAME
            self._first_request = self._correlation_id + 1
            self._advance(ConnectionState.READY)
        except GeneratorExit:
            raise  # the coroutine is discarded with its loop: nothing can be awaited
        except BaseException as error:
            await self._give_up(error)
            raise
        self._metrics.connects += 1
        if self._authentication.has_end:
            self._session_task = new_task(
                self._loop, self._stay_authenticated(), f"aioproducer session with {self.node}"
            )
        if self._config.connections_max_idle > 0:
            self._arm(self.last_used + self._config.connections_max_idle)
        self.on_change(self)

    async def _give_up(self, error: BaseException) -> None:
        """Close everything after a failed attempt, and raise a more specific error than `error` if there is one."""
        self._metrics.connect_failures += 1
        self._shut(error if isinstance(error, KafkaError) else BrokerConnectionError(f"{self}: aborted"))
        if self._wire is not None:
            self._wire.abort()
        await self._ended()
        if type(error) is BrokerConnectionError and self.hung_up_on_versions:
            await self._look_for_tls(error)

    async def _dial(self) -> Wire:
        make_wire: Callable[[asyncio.AbstractEventLoop], Wire] = partial(Wire, on_drained=self._drained)
        if self._login.uses_tls:
            # Certificate files are read before the socket is opened, so that the peer does not wait for them.
            context = await self._tls_context()
            make_wire = partial(
                TlsWire,
                context=context,
                server_name=certificate_name(self.node.host),
                on_drained=self._drained,
            )
        host, port = self._address
        try:
            return await dial(
                host,
                port,
                self._setup_timeout,
                make_wire=make_wire,
                connector=self._config.connector,
                address_filter=self._config.resolved_address_filter,
                passed_over=self._attempt.passed_over,
                on_open=self._opens,
            )
        except BrokerConnectionError as error:
            if not self._is_advertised_in_vain(error):
                raise
            raise BrokerConnectionError(
                f"{error.message}; the cluster advertises this address to its clients: see advertised.listeners of "
                f"broker {self.node.node_id}",
                written=False,
            ) from error

    def _is_advertised_in_vain(self, error: BrokerConnectionError) -> bool:
        """Return whether the broker advertises an address that this machine cannot use.

        Such an address is a name that cannot be resolved, or a loopback address while the bootstrap servers are on
        other machines.
        """
        servers = self._config.bootstrap_servers
        is_mapped = self._address != (self.node.host, self.node.port)  # by address_filter
        if self.node.node_id < 0 or is_mapped or self._address in servers:
            return False
        if isinstance(error.__cause__, socket.gaierror):
            return True
        return is_loopback(self._address[0]) and not any(is_loopback(host) for host, _ in servers)

    def _opens(self) -> None:
        self._opened_at = self._loop.time()

    async def _tls_context(self) -> ssl.SSLContext:
        """Return the TLS context. Reading its files may hang (network drive, busy threads), so a timeout applies."""
        try:
            async with asyncio.timeout(self._setup_timeout):
                return await self._login.tls_context()
        except TimeoutError:
            pass
        message = f"{self}: certificates were not read within {self._setup_timeout:g} s"
        raise BrokerConnectionError(message, written=False)

    async def _look_for_tls(self, error: BrokerConnectionError) -> None:
        """Raise NotKafkaError if the port that closed the connection requires TLS.

        The port is tested only after an ApiVersions request of version 0, because old brokers also close the connection
        when they receive a version that they do not know.
        """
        if self._login.uses_tls or self._attempt.first_asked > 0:
            return
        host, port = self._address
        timeout = min(self._setup_timeout, TLS_PROBE_TIMEOUT)
        config = self._config
        if await answers_tls(
            host, port, timeout, config.connector, config.resolved_address_filter, self._attempt.passed_over
        ):
            raise NotKafkaError(
                f"{self}: the peer closed the connection after a Kafka request, but it speaks TLS; this port requires "
                "TLS, so set security_protocol to SSL or SASL_SSL",
                peer="TLS",
            ) from error

    def _advance(self, to: ConnectionState) -> None:
        """Enter the next state in the handshake. Raises an error if the connection was closed in the meantime."""
        if self.state is ConnectionState.CLOSED:
            raise self.error or BrokerConnectionError(f"{self}: the connection was closed")
        self._move(to)

    async def _ask(self, request: Message, version: int, timeout: float) -> Message:
        answer: Message = await self._send(request, version, timeout)
        return answer

    async def _ask_versions(self, request: ApiVersionsRequest, version: int) -> ApiVersionsResponse:
        answer = await self._send(request, version, self._answer_timeout)
        assert isinstance(answer, ApiVersionsResponse)
        return answer

    async def _stay_authenticated(self) -> None:
        """Re-authenticate before each session expires (KIP-368)."""
        try:
            while self._authentication.has_end:
                mechanism = await self._authentication.renewal()
                if self.state is not ConnectionState.READY:
                    return
                await self._reauthenticate(mechanism)
        except KafkaError as error:
            self._shut(error)
        except Exception:
            self._log.exception("%s: re-authentication failed", self)
            self._shut(BrokerConnectionError(f"{self}: re-authentication failed; the connection was closed"))

    async def _reauthenticate(self, mechanism: Mechanism) -> None:
        """Re-authenticate. No other request is written in the meantime, because brokers would reject it (KIP-368).

        Responses to earlier requests arrive first, in order.
        """
        used = self.last_used
        self._move(ConnectionState.REAUTHENTICATING)
        timeout = max(self._setup_timeout, self._config.request_timeout)
        await self._authentication.run(mechanism, partial(self._ask, timeout=timeout), self.versions)
        if self.state is ConnectionState.REAUTHENTICATING:
            self.last_used = used  # re-authentication does not keep an idle connection open
            self._move(ConnectionState.READY)
            self.on_change(self)

    # Progress, and hints for error texts

    @property
    def unanswered_for(self) -> float:
        """How many seconds ago the socket began to open, if ApiVersions has not been answered yet; otherwise 0.0."""
        is_waiting = self.state in (
            ConnectionState.CONNECTING,
            ConnectionState.TLS,
            ConnectionState.NEGOTIATING,
        )
        return max(self._loop.time() - self._opened_at, 0.0) if is_waiting else 0.0

    @property
    def hung_up_on_versions(self) -> bool:
        """True if the connection was lost between the ApiVersions request and its response."""
        return self._closed_in is ConnectionState.NEGOTIATING and type(self.error) is BrokerConnectionError

    @property
    def security(self) -> str:
        """The TLS version and cipher, or "plain text"."""
        return "plain text" if self._wire is None else self._wire.security

    @property
    def progress(self) -> str:
        """The step that the attempt to connect has reached, and how long it has been waiting."""
        opened = self._opened_at
        seconds = f"{self._loop.time() - opened:.3g} s" if opened < math.inf else ""
        if self.state is ConnectionState.CONNECTING:
            return f"no connection yet after {seconds}" if seconds else "the name is being resolved"
        if self.state is ConnectionState.TLS:
            return f"the port accepted the connection but has not answered the TLS handshake for {seconds}"
        if self.state is ConnectionState.NEGOTIATING:
            return f"the port accepted the connection but has not answered ApiVersions for {seconds}{self._hint()}"
        if self.state is ConnectionState.AUTHENTICATING:
            return "authentication is not complete yet"
        return "not connected yet"

    def _hint(self) -> str:
        """Return a hint for error texts: a silent peer is often not a Kafka broker, or it requires TLS."""
        state = self._closed_in if self.state is ConnectionState.CLOSED else self.state
        if state in (ConnectionState.READY, ConnectionState.DRAINING):
            return self._hint_of_sasl()
        if state is ConnectionState.AUTHENTICATING:
            return (
                f" during authentication with {self._config.sasl_mechanism}" if self._login.uses_sasl else ""
            )
        if state is not ConnectionState.NEGOTIATING:
            return ""
        return " during the handshake: is this a Kafka broker's port, and does security_protocol match its listener?"

    def _hint_of_sasl(self) -> str:
        """Return a hint if the listener may require SASL: it answered ApiVersions, then closed the connection."""
        first = self._in_flight[0] if self._in_flight else None
        if self._login.uses_sasl or first is None or first.correlation_id != self._first_request:
            return ""
        return (
            " instead of answering the first request: does this listener require SASL? If so, set security_protocol to "
            f"{'SASL_SSL' if self._login.uses_tls else 'SASL_PLAINTEXT'}"
        )

    def _broken(self, error: OSError) -> KafkaError:
        """Return the error for a failed read. With TLS 1.3, a broker rejects our certificate after the handshake."""
        if isinstance(error, ssl.SSLError) and self.state is ConnectionState.NEGOTIATING:
            return handshake_error(self, error)
        return super()._broken(error)
