"""A plugin for real brokers that writes the metrics of clients to files; compiled on demand."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from aioproducer.testing.apache.jars import cache_directory, java_executable

SOURCE = """
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricsReporter;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.telemetry.ClientTelemetry;
import org.apache.kafka.server.telemetry.ClientTelemetryPayload;
import org.apache.kafka.server.telemetry.ClientTelemetryReceiver;

public class KeepsTelemetry implements MetricsReporter, ClientTelemetry {
    private static final AtomicInteger COUNT = new AtomicInteger();

    public void init(List<KafkaMetric> metrics) {}
    public void metricChange(KafkaMetric metric) {}
    public void metricRemoval(KafkaMetric metric) {}
    public void close() {}
    public void configure(Map<String, ?> settings) {}

    public ClientTelemetryReceiver clientReceiver() {
        return (AuthorizableRequestContext context, ClientTelemetryPayload payload) -> {
            byte[] data = new byte[payload.data().remaining()];
            payload.data().duplicate().get(data);
            String name = String.format("%06d %s %s %s", COUNT.incrementAndGet(), context.clientId(),
                payload.clientInstanceId(), payload.isTerminating() ? "last" : "more");
            try {
                Path directory = Path.of(System.getProperty("keeps.telemetry.in"));
                Path partial = Files.write(directory.resolve(name + ".partial"), data);
                Files.move(partial, directory.resolve(name));
            } catch (java.io.IOException error) {
                throw new java.io.UncheckedIOException(error);
            }
        };
    }
}
"""


def compiled(version: str, directory: Path) -> Path:
    """Compile the plugin for a release of Kafka whose jars are in the cache; return the directory of its class.

    The compiler is javac, or Eclipse's compiler from Maven Central if there is only a Java runtime.
    """
    source = directory / "KeepsTelemetry.java"
    source.write_text(SOURCE)
    jars = ":".join(
        str(jar) for jar in sorted((cache_directory() / f"kafka-{version}-with-tools").glob("*.jar"))
    )
    target = directory / "classes"
    javac = shutil.which("javac")
    compiler = [javac] if javac is not None else [java_executable(), "-jar", _eclipses_compiler(), "-17"]
    subprocess.run(
        [*compiler, "-cp", jars, "-d", str(target), str(source)], check=True, capture_output=True, text=True
    )
    return target


def _eclipses_compiler() -> str:
    import jgo

    [artifact] = jgo.resolve("org.eclipse.jdt:ecj:3.42.0")
    return str(artifact.resolve())
