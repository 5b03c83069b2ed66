"""Gets a producer id for idempotence, in a task that asks brokers until one of them returns an id.

The sender starts the task when it needs an id. If no id is obtained, `last_error` and `rejection` give the reason."""

from __future__ import annotations

import asyncio

from aioproducer.concurrency.tasks import new_task
from aioproducer.core import Core
from aioproducer.errors import BrokerError, KafkaError, ProtocolError
from aioproducer.network.backoff import backoff
from aioproducer.network.brokers import Brokers
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import error_name
from aioproducer.protocol.messages import InitProducerIdRequest, InitProducerIdResponse
from aioproducer.protocol.outcomes import Action, advice, decide, decide_failure, failure_of
from aioproducer.records.idempotence import Idempotence, ProducerIdentity

NO_TRANSACTION_TIMEOUT_MS = 2**31 - 1


class ProducerIdSource:
    """Sets `Idempotence.identity`. Used only by the sender task and the task that it starts."""

    def __init__(self, core: Core, idempotence: Idempotence, brokers: Brokers) -> None:
        self._config = core.config
        self._log = core.config.log(__name__)
        self._idempotence = idempotence
        self._brokers = brokers
        self._wake = core.wake
        self._metrics = core.metrics
        self._random = core.random
        self._task: asyncio.Task[None] | None = None
        self.last_error: KafkaError | None = None
        """The last error since an id was requested; None once an id has been obtained."""
        self.rejection: KafkaError | None = None
        """The error after which no further attempt is made. The sender fails the waiting records and sets this field
        to None."""

    @property
    def is_needed(self) -> bool:
        """True if batches have to wait for a producer id."""
        return self._idempotence.needs_identity

    @property
    def was_asked(self) -> bool:
        return self._task is not None

    def ask(self) -> None:
        """Get an id in the background, unless the task is already running. The task sets the wake-up event when it
        ends."""
        if self._task is None or self._task.done():
            loop = asyncio.get_running_loop()
            self._task = new_task(loop, self._obtain(), "aioproducer-producer-id")

    async def close(self) -> None:
        """Cancel the task and wait until it has ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _obtain(self) -> None:
        failures = 0
        while True:
            try:
                if await self._ask_once():
                    self._wake.set()
                    return
            except KafkaError as error:
                self._metrics.count_error(
                    error.name if isinstance(error, BrokerError) else type(error).__name__
                )
                self.last_error = error
                if not self._may_pass(error):
                    self.rejection = error
                    self._wake.set()
                    return
                self._log.debug("no producer id yet: %s", error)
            config = self._config
            await asyncio.sleep(
                backoff(config.retry_backoff, config.retry_backoff_max, failures, self._random)
            )
            failures += 1

    async def _ask_once(self) -> bool:
        request = InitProducerIdRequest(
            transactional_id=None,
            transaction_timeout_ms=NO_TRANSACTION_TIMEOUT_MS,
            producer_id=-1,
            producer_epoch=-1,
        )
        response = await self._brokers.request_any(request, timeout=self._config.request_timeout)
        assert isinstance(response, InitProducerIdResponse)
        code = response.error_code
        if decide(ApiKey.INIT_PRODUCER_ID, code).action is not Action.SUCCEED:
            name = error_name(code)
            raise BrokerError(
                f"a broker rejected the request for a producer id with {name}{advice(code)}",
                code=code,
                name=name,
            )
        if response.producer_id < 0 or response.producer_epoch < 0:
            raise ProtocolError(
                f"a broker returned producer id {response.producer_id} and epoch {response.producer_epoch}; both must "
                "be 0 or more"
            )
        self._idempotence.use(ProducerIdentity(response.producer_id, response.producer_epoch))
        self.last_error = None
        return True

    @staticmethod
    def _may_pass(error: KafkaError) -> bool:
        """Return whether another attempt could succeed after this error."""
        if isinstance(error, BrokerError):
            return decide(ApiKey.INIT_PRODUCER_ID, error.code).action in (Action.RETRY, Action.COORDINATOR)
        return decide_failure(failure_of(error)).action is not Action.FAIL
