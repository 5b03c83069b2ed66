"""A dict that a program for confluent-kafka uses for its producers and its consumers; the secret is fake.

Source: https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md"""

SETTINGS: dict[str, object] = {
    "metadata.broker.list": "kafka-1.example.com:9093,kafka-2.example.com:9093",
    "client.id": "orders",
    "group.id": "orders",
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "session.timeout.ms": 6000,
    "security.protocol": "sasl_ssl",
    "sasl.mechanisms": "SCRAM-SHA-512",
    "sasl.username": "orders",
    "sasl.password": "fake-secret",
    "ssl.ca.location": "/etc/ssl/certs/ca-certificates.crt",
    "broker.address.family": "v4",
    "socket.timeout.ms": 60000,
    "request.timeout.ms": 30000,
    "socket.keepalive.enable": True,
    "message.timeout.ms": 0,
    "queue.buffering.max.ms": 5,
    "queue.buffering.max.messages": 100000,
    "compression.codec": "snappy",
    "statistics.interval.ms": 60000,
}
