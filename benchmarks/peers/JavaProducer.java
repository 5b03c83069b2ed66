import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Measures Kafka's own producer as measure.py measures the others: a job as JSON in argv, a result on stdout.
 *
 * <p>CPU is that of the whole JVM over the measured part, after a warm-up: compiler and collector included.
 */
public final class JavaProducer {
    private static JsonNode job;
    private static String topic;
    private static byte[][] values;
    private static KafkaProducer<byte[], byte[]> producer;

    public static void main(String[] arguments) throws Exception {
        job = new ObjectMapper().readTree(arguments[0]);
        topic = job.get("topic").asText();
        int size = job.get("value_size").asInt();
        byte[] text = Files.readAllBytes(Path.of(job.get("values_file").asText()));
        values = new byte[text.length / size][];
        for (int i = 0; i < values.length; i++) values[i] = Arrays.copyOfRange(text, i * size, (i + 1) * size);
        producer = new KafkaProducer<>(settings(), new ByteArraySerializer(), new ByteArraySerializer());
        String kind = job.get("kind").asText();
        Map<String, Object> found = switch (kind) {
            case "pipelined", "window" -> pipelined();
            case "closed_loop" -> closedLoop();
            case "memory" -> memory();
            default -> throw new IllegalArgumentException("the Java producer can't measure " + kind);
        };
        System.out.println(new ObjectMapper().writeValueAsString(found));
        System.out.flush();
        if (kind.equals("memory")) Runtime.getRuntime().halt(0); // closing would wait for a broker that never answers
        producer.close();
    }

    private static Map<String, Object> settings() {
        Map<String, Object> settings = new LinkedHashMap<>(); // idempotent, acks from all: its defaults
        settings.put(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, job.get("bootstrap").asText());
        settings.put(ProducerConfig.COMPRESSION_TYPE_CONFIG, job.get("compression").asText());
        if (!job.get("level").isNull())
            settings.put("compression." + job.get("compression").asText() + ".level", job.get("level").asInt());
        if (!job.get("authority").asText().isEmpty()) {
            settings.put("security.protocol", "SSL");
            settings.put("ssl.truststore.type", "PEM");
            settings.put("ssl.truststore.location", job.get("authority").asText());
        }
        if (!job.get("linger_ms").isNull())
            settings.put(ProducerConfig.LINGER_MS_CONFIG, job.get("linger_ms").asInt());
        if (!job.get("batch_size").isNull())
            settings.put(ProducerConfig.BATCH_SIZE_CONFIG, job.get("batch_size").asInt());
        if (List.of("memory", "window").contains(job.get("kind").asText()))
            settings.put(ProducerConfig.BUFFER_MEMORY_CONFIG, 1L << 30);
        else if (job.get("round_robin").asBoolean())
            settings.put(ProducerConfig.BUFFER_MEMORY_CONFIG, 256L << 20); // an open batch for every partition
        return settings;
    }

    private static Map<String, Object> pipelined() throws InterruptedException {
        int warmUp = job.get("warm_up").asInt(), records = job.get("records").asInt();
        AtomicLong delivered = new AtomicLong();
        push(warmUp, delivered);
        double cpu = cpuSeconds();
        long wall = System.nanoTime();
        push(records, delivered);
        Map<String, Object> found = perRecord(records, cpuSeconds() - cpu, (System.nanoTime() - wall) / 1e9);
        if (delivered.get() != warmUp + records)
            throw new IllegalStateException(delivered + " deliveries of " + (warmUp + records) + " records");
        found.put("sent", warmUp + records);
        return found;
    }

    private static void push(int count, AtomicLong delivered) throws InterruptedException {
        boolean roundRobin = job.get("round_robin").asBoolean();
        int partitions = job.get("partitions").asInt();
        boolean isWindow = job.get("kind").asText().equals("window");
        Semaphore window = new Semaphore(isWindow ? job.get("window").asInt() : Integer.MAX_VALUE);
        for (int i = 0; i < count; i++) {
            Integer partition = roundRobin ? (Integer) (i % partitions) : null;
            if (isWindow) window.acquire();
            producer.send(
                new ProducerRecord<>(topic, partition, null, values[i % values.length]),
                (metadata, error) -> {
                    if (error == null) delivered.incrementAndGet();
                    if (isWindow) window.release();
                });
        }
        producer.flush();
    }

    /** Each thread waits for its record before it sends the next. */
    private static Map<String, Object> closedLoop() throws Exception {
        int tasks = job.get("tasks").asInt();
        int warmUp = job.get("warm_up").asInt() / tasks, each = job.get("records").asInt() / tasks;
        loop(tasks, warmUp);
        double cpu = cpuSeconds();
        long wall = System.nanoTime();
        long[] latencies = loop(tasks, each);
        Map<String, Object> found =
            perRecord(latencies.length, cpuSeconds() - cpu, (System.nanoTime() - wall) / 1e9);
        Arrays.sort(latencies);
        found.put("p50_ms", quantile(latencies, 0.5));
        found.put("p99_ms", quantile(latencies, 0.99));
        found.put("sent", tasks * (warmUp + each));
        return found;
    }

    private static long[] loop(int tasks, int each) throws Exception {
        long[] latencies = new long[tasks * each];
        Thread[] threads = new Thread[tasks];
        for (int task = 0; task < tasks; task++) {
            int first = task;
            threads[task] = new Thread(() -> {
                for (int i = 0; i < each; i++) {
                    long began = System.nanoTime();
                    try {
                        producer.send(new ProducerRecord<>(topic, values[(first + i) % values.length])).get();
                    } catch (Exception error) {
                        error.printStackTrace();
                        Runtime.getRuntime().halt(1);
                    }
                    latencies[first * each + i] = System.nanoTime() - began;
                }
            });
            threads[task].start();
        }
        for (Thread thread : threads) thread.join();
        return latencies;
    }

    /** The broker never answers, so every record waits. The heap after a collection is what they take. */
    private static Map<String, Object> memory() throws Exception {
        int records = job.get("records").asInt();
        fill(job.get("warm_up").asInt());
        long heap = heapBytes();
        fill(records);
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("bytes_per_record", (heapBytes() - heap) / (double) records);
        found.put("waiting", records);
        return found;
    }

    private static void fill(int count) throws InterruptedException {
        for (int i = 0; i < count; i++) {
            byte[] value = values[i % values.length].clone();
            System.arraycopy(String.format("%08d", i).getBytes(StandardCharsets.US_ASCII), 0, value, 0, 8);
            producer.send(new ProducerRecord<>(topic, value), (metadata, error) -> {});
        }
        Thread.sleep(200); // the requests that fit into the window go out and stay unanswered
    }

    private static Map<String, Object> perRecord(int records, double cpu, double wall) {
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("cpu_us", cpu / records * 1e6);
        found.put("records_per_s", records / wall);
        return found;
    }

    private static double cpuSeconds() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime() / 1e9;
    }

    private static double quantile(long[] ordered, double q) {
        return ordered[Math.min(ordered.length - 1, (int) (ordered.length * q))] / 1e6;
    }

    private static long heapBytes() throws InterruptedException {
        for (int i = 0; i < 3; i++) {
            System.gc();
            Thread.sleep(50);
        }
        return ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed();
    }
}
