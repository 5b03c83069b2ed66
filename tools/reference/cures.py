"""The cure for each error in aioproducer.errors; the errors' docstrings state the cause."""

CURES = {
    "KafkaError": (
        "Catch one of its subclasses if you can act on it; catch this class where you only report a failure."
    ),
    "ConfigError": (
        "Correct the setting that the text names. `errors` has one error for each mistake. "
        "[Settings](settings.md) lists all settings, and `aioproducer config FILE` checks a file without a "
        "cluster."
    ),
    "IllegalStateError": "Correct the order of the calls. The text says which call is not allowed, and why.",
    "ProducerNotStartedError": "Call `await producer.start()` first, or use `async with`.",
    "ProducerClosed": (
        "If the service is shutting down, drop the record or store it elsewhere. Otherwise create a new producer: a "
        "closed one cannot be started again."
    ),
    "WrongLoopError": (
        "Create one producer for each event loop. In threads and in code without a loop, use "
        "[`aioproducer.blocking.Producer`](blocking.md)."
    ),
    "ForkedError": (
        "Start the producer after the fork, in each worker: see [gunicorn](gunicorn.md) and "
        "[Celery](celery.md)."
    ),
    "InvalidArgumentError": "Correct the argument that `argument` names.",
    "InvalidRecordError": (
        "Correct the record. If the value is not bytes, encode it or set a [serializer](serializers.md)."
    ),
    "RecordTooLargeError": (
        "Send smaller records, or raise `max_request_size` and the topic's `max.message.bytes`. `size` and "
        "`limit` are in bytes."
    ),
    "InvalidTopicError": "Use a name of at most 249 letters, digits, dots, underscores and hyphens.",
    "SerializationError": (
        "Correct the value, or the serializer. `__cause__` is the serializer's exception."
    ),
    "BufferFullError": (
        "Call `send`, which waits, or drop the record. If this happens often, see the section about [a full "
        "buffer](runbook.md#the-buffer-is-full)."
    ),
    "KafkaTimeoutError": "Look at the subclass, which says what took too long.",
    "BufferTimeoutError": (
        "Send more slowly, or find out why the brokers accept fewer records: see the section about [a full "
        "buffer](runbook.md#the-buffer-is-full). A larger `buffer_memory` helps only with bursts."
    ),
    "MetadataTimeoutError": (
        "Check the name of the topic, and whether the topic exists. If no broker answers at all, see the section "
        "about [connecting](runbook.md#the-producer-cannot-connect)."
    ),
    "UnknownPartitionError": (
        "Check the number of the partition against `partitions`, or let the partitioner choose."
    ),
    "TopicAuthorizationError": (
        "Ask for permission to write to the topic: `kafka-acls.sh --add --allow-principal User:NAME "
        "--producer --topic TOPIC`. `aioproducer check --topic TOPIC` shows the permissions."
    ),
    "BootstrapError": (
        "Read `reasons`, which has an error for each address. `aioproducer check` tests each step of the "
        "connection, and says what to do about the one that fails."
    ),
    "DeliveryError": (
        "If `outcome` is `NOT_PERSISTED`, you can send the record again. If it is `UNKNOWN`, the record may "
        "be in the log, so check first. `last_error` is the reason: see [the outcomes](delivery.md)."
    ),
    "DeliveryTimeoutError": (
        "Look in `last_error` and in the log for the reason. A longer `delivery_timeout_ms` leaves more time "
        "for retries: see [unknown deliveries](runbook.md#deliveries-are-unknown)."
    ),
    "TransactionAbortedError": "Send the record again in the next transaction.",
    "SendManyError": (
        "Decide by the outcome of each row in `errors` whether to send it again: see [Many records](send-many.md)."
    ),
    "TransactionError": (
        "Look at `requires_abort` and `requires_reinit`: see [transactions](delivery.md#in-a-transaction)."
    ),
    "TransactionAbortableError": (
        "Call `abort_transaction()` (a `transaction()` block does this for you), and repeat the work in the "
        "next transaction. `last_error` is the cause."
    ),
    "TransactionReinitError": "Call `init_transactions()`, or close the producer and create a new one.",
    "ProducerFencedError": (
        "If another instance has taken over, for example after a deployment, stop this one. If both are meant to run, "
        "give each its own `transactional_id`: see [the runbook](runbook.md#the-producer-is-fenced)."
    ),
    "CommitOutcomeUnknownError": (
        "Call `commit_transaction()` again, which repeats the same request. If this fails as well, check the "
        "result before you repeat the work."
    ),
    "TransactionTimeoutError": (
        "Repeat the same call. If it fails again, check whether the brokers can be reached."
    ),
    "BrokerConnectionError": (
        "Nothing, if this is rare: the producer reconnects. If it persists, the text and the log say why: see "
        "[connecting](runbook.md#the-producer-cannot-connect)."
    ),
    "RequestTimedOutError": (
        "Find out why the broker is slow: see [a slow broker](runbook.md#a-broker-is-slow)."
    ),
    "AuthenticationError": (
        "Correct the user name, the password, the token or the certificate. The text contains the broker's "
        "reason: see [Security](security.md#when-authentication-fails)."
    ),
    "UnsupportedSaslMechanismError": (
        "Set `sasl_mechanism` to one of `offered`, or enable the mechanism on the listener."
    ),
    "TlsError": (
        "Trust the authority of the broker's certificate with `ssl_truststore_location`, use a name that the "
        "certificate contains, or connect to a listener that uses TLS."
    ),
    "ProtocolError": (
        "Check what listens at the address, and what is between you and the broker. If it is a Kafka broker, "
        "please report a bug."
    ),
    "CorrelationError": (
        "The connection is replaced. If it happens again, look for a proxy that mixes up connections, and "
        "report a bug."
    ),
    "MissingPartitionError": (
        "The connection is replaced. If it happens again, report a bug with the version of the broker."
    ),
    "ForeignPartitionError": (
        "The connection is replaced. If it happens again, report a bug with the version of the broker."
    ),
    "NotKafkaError": (
        "Correct the host or the port. If `peer` is `TLS`, set `security_protocol` to `SSL` or `SASL_SSL`."
    ),
    "UnsupportedVersionError": (
        "Upgrade the brokers to Kafka 2.1 or later, or do without the feature that the text names."
    ),
    "BrokerError": (
        "Look up `name` in [the error table](error-table.md), which says what the producer does about it. As "
        "the `last_error` of a delivery, it is the reason for the failure."
    ),
}
"""The cures, by error class name. Links are relative to docs/."""
