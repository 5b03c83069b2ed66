"""Public name of the Prometheus collector."""

try:
    from aioproducer.observe.prometheus import ProducerCollector
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'aioproducer.prometheus requires an extra; run pip install "aioproducer[prometheus]"', name=error.name
    ) from error

__all__ = ["ProducerCollector"]
