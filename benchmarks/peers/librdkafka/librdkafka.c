/* librdkafka measured as measure.py measures the others, through its C API: a job as JSON in argv, a result on stdout.
 *
 * CPU is the user and system time of this process over the measured part, after a warm-up. The values are never copied:
 * they are in memory until the end, as a careful program in C would arrange it. */
#define _POSIX_C_SOURCE 200809L
#include <librdkafka/rdkafka.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { BETWEEN_POLLS = 1000 };

static const char *job;
static char *values;
static long value_size, value_count, delivered;

static void fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

/* The text after "name": in the job, whose names and strings need no escapes. */
static const char *found(const char *name) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\": ", name);
    const char *at = strstr(job, quoted);
    if (!at) fail("the job lacks", name);
    return at + strlen(quoted);
}

static int is_null(const char *name) { return strncmp(found(name), "null", 4) == 0; }
static double number(const char *name) { return strtod(found(name), NULL); }

static const char *text(const char *name, char *into, size_t size) {
    const char *at = found(name) + 1, *end = strchr(at, '"');
    if (!end || (size_t)(end - at) >= size) fail("unreadable", name);
    memcpy(into, at, (size_t)(end - at));
    into[end - at] = 0;
    return into;
}

static void set(rd_kafka_conf_t *conf, const char *name, const char *value) {
    char why[256];
    if (rd_kafka_conf_set(conf, name, value, why, sizeof why) != RD_KAFKA_CONF_OK) fail(name, why);
}

static void on_delivery(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
    (void)client, (void)opaque;
    if (message->err) fail("a record was not delivered", rd_kafka_err2str(message->err));
    delivered++;
}

static rd_kafka_t *opened(int is_memory) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    char value[4096], why[256];
    set(conf, "bootstrap.servers", text("bootstrap", value, sizeof value));
    set(conf, "acks", "all");
    set(conf, "enable.idempotence", "true");
    set(conf, "compression.type", text("compression", value, sizeof value));
    if (!is_null("linger_ms")) {
        snprintf(value, sizeof value, "%g", number("linger_ms"));
        set(conf, "linger.ms", value);
    }
    if (!is_null("batch_size")) {
        snprintf(value, sizeof value, "%.0f", number("batch_size"));
        set(conf, "batch.size", value);
    }
    if (is_memory) {
        set(conf, "queue.buffering.max.messages", "10000000");
        set(conf, "queue.buffering.max.kbytes", "1048576");
    }
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    rd_kafka_t *client = rd_kafka_new(RD_KAFKA_PRODUCER, conf, why, sizeof why);
    if (!client) fail("rd_kafka_new", why);
    return client;
}

static void produce(rd_kafka_t *client, rd_kafka_topic_t *topic, int32_t partition, int flags, void *value) {
    while (rd_kafka_produce(topic, partition, flags, value, (size_t)value_size, NULL, 0, NULL)) {
        if (rd_kafka_last_error() != RD_KAFKA_RESP_ERR__QUEUE_FULL)
            fail("rd_kafka_produce", rd_kafka_err2str(rd_kafka_last_error()));
        rd_kafka_poll(client, 10);
    }
}

static void push(rd_kafka_t *client, rd_kafka_topic_t *topic, long count, long window) {
    int in_turn = strncmp(found("round_robin"), "true", 4) == 0;
    long partitions = (long)number("partitions"), before = delivered;
    for (long i = 0; i < count; i++) {
        while (i - (delivered - before) >= window) rd_kafka_poll(client, 10);
        int32_t partition = in_turn ? (int32_t)(i % partitions) : RD_KAFKA_PARTITION_UA;
        produce(client, topic, partition, 0, values + i % value_count * value_size);
        if (i % BETWEEN_POLLS == 0) rd_kafka_poll(client, 0);
    }
    if (rd_kafka_flush(client, 60000)) fail("rd_kafka_flush", "records are left");
}

static double cpu_seconds(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + 1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static long resident_bytes(void) {
    malloc_trim(0);
    FILE *file = fopen("/proc/self/statm", "r");
    long pages;
    if (!file || fscanf(file, "%*d %ld", &pages) != 1) fail("/proc/self/statm", "unreadable");
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

static void pipelined(rd_kafka_t *client, rd_kafka_topic_t *topic, long window) {
    long warm_up = (long)number("warm_up"), records = (long)number("records");
    push(client, topic, warm_up, window);
    double cpu = cpu_seconds(), wall = now();
    push(client, topic, records, window);
    cpu = cpu_seconds() - cpu, wall = now() - wall;
    if (delivered != warm_up + records) fail("deliveries", "not one for each record");
    printf("{\"cpu_us\": %.6f, \"records_per_s\": %.1f, \"sent\": %ld}\n", cpu / (double)records * 1e6,
           (double)records / wall, warm_up + records);
}

/* The broker never answers, so every record waits. The values are copied: they would be fresh objects of a program. */
static void memory(rd_kafka_t *client, rd_kafka_topic_t *topic) {
    long counts[] = {(long)number("warm_up"), (long)number("records")}, before = 0;
    for (int part = 0; part < 2; part++) {
        before = resident_bytes();
        for (long i = 0; i < counts[part]; i++)
            produce(client, topic, RD_KAFKA_PARTITION_UA, RD_KAFKA_MSG_F_COPY, values + i % value_count * value_size);
        rd_kafka_poll(client, 200);
    }
    double grown = (double)(resident_bytes() - before);
    printf("{\"bytes_per_record\": %.3f, \"waiting\": %ld}\n", grown / (double)counts[1], counts[1]);
}

int main(int count, char **arguments) {
    if (count != 2) fail(arguments[0], "expected a job");
    job = arguments[1];
    char kind[64], name[4096];
    text("kind", kind, sizeof kind);
    value_size = (long)number("value_size");
    FILE *file = fopen(text("values_file", name, sizeof name), "rb");
    if (!file || fseek(file, 0, SEEK_END)) fail(name, "unreadable");
    long size = ftell(file);
    rewind(file);
    values = malloc((size_t)size);
    if (!values || fread(values, 1, (size_t)size, file) != (size_t)size) fail(name, "unreadable");
    fclose(file);
    value_count = size / value_size;
    int is_memory = strcmp(kind, "memory") == 0, is_window = strcmp(kind, "window") == 0;
    if (!is_memory && !is_window && strcmp(kind, "pipelined")) fail("librdkafka can't measure", kind);
    rd_kafka_t *client = opened(is_memory);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(client, text("topic", name, sizeof name), NULL);
    if (!topic) fail("rd_kafka_topic_new", rd_kafka_err2str(rd_kafka_last_error()));
    if (is_memory) {
        memory(client, topic);
        fflush(stdout);
        _exit(0); /* closing would wait for a broker that never answers */
    }
    pipelined(client, topic, is_window ? (long)number("window") : __LONG_MAX__);
    rd_kafka_topic_destroy(topic);
    rd_kafka_destroy(client);
    return 0;
}
