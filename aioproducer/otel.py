"""Public name of the OpenTelemetry instrumentation."""

try:
    from aioproducer.observe.otel import AioproducerInstrumentor
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'aioproducer.otel requires an extra; run pip install "aioproducer[otel]"', name=error.name
    ) from error

__all__ = ["AioproducerInstrumentor"]
