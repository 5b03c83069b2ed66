"""Public name of the instrumentation for OpenTelemetry."""

try:
    from aioproducer.observe.otel import AioproducerInstrumentor
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'aioproducer.otel needs an extra: pip install "aioproducer[otel]"', name=error.name
    ) from error

__all__ = ["AioproducerInstrumentor"]
