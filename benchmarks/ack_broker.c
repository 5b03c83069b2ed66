/* ack_broker: a Kafka broker that only acknowledges, to measure producers against.
 *
 * It reads requests, counts the records that each batch header claims, gives offsets and answers; nothing is stored,
 * decompressed or checksummed. One thread, one epoll. Every byte from a peer goes through struct reader, which never
 * reads past its end; a request that cannot be read closes its connection, as Kafka does.
 *
 *     cc -O2 -o ack_broker ack_broker.c
 *     ack_broker [--host 127.0.0.1] [--port 0] [--advertise HOST] [--advertise-port PORT] [--node-id 1] [--partitions 1]
 *                [--topic NAME:PARTITIONS]... [--delay-ms 0] [--silent] [--sink]
 *
 * --silent: answers no Produce request. --sink: no Kafka at all; counts the bytes of each connection and drops them.
 *
 * Prints "listening PORT" when it is ready. Prints its counts as one line of JSON on SIGUSR1 or on the line "counts"
 * from stdin. Ends on SIGTERM, SIGINT, the line "quit" or the end of stdin. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_FRAME = 100 << 20,          /* socket.request.max.bytes of a Kafka broker */
    MAX_REPLY = 64 << 20,
    MAX_BACKLOG = 8 << 20,          /* bytes a peer may leave unread before it is no longer read from */
    MAX_TOPIC_NAME = 249,
    MAX_TOPICS = 1 << 16,
    MAX_PARTITIONS = 1 << 22,       /* of all topics together */
    NAME_BUCKETS = 1 << 16,
};

enum error {
    NONE = 0,
    CORRUPT_MESSAGE = 2,
    UNKNOWN_TOPIC_OR_PARTITION = 3,
    INVALID_TOPIC_EXCEPTION = 17,
    INVALID_REQUIRED_ACKS = 21,
    UNSUPPORTED_VERSION = 35,
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43,
    POLICY_VIOLATION = 44,
    INVALID_RECORD = 87,
    UNKNOWN_TOPIC_ID = 100,
};

enum outcome { REPLY, NO_REPLY, REFUSE }; /* REFUSE closes the connection */

struct buffer {
    uint8_t *data;
    size_t start, end, capacity; /* start..end holds bytes that nobody has taken yet */
};

struct reader {
    const uint8_t *at, *end;
    bool bad; /* a read went past the end or found nonsense; everything after it reads as zero */
};

struct text {
    const char *data;
    int64_t size; /* -1 is null */
};

struct partition {
    int64_t records, batches;
};

struct topic {
    struct topic *next_in_bucket;
    struct partition *partitions;
    int32_t partition_count;
    uint8_t id[16];
    int name_size;
    char name[MAX_TOPIC_NAME + 1];
};

struct connection {
    int fd;
    struct buffer in, out;
    unsigned delayed;        /* replies that wait in the delay queue */
    uint32_t watched;        /* the events that epoll watches */
    bool closed;
    struct connection *next_closed;
};

struct delayed_reply {
    struct delayed_reply *next;
    struct connection *connection;
    int64_t due; /* CLOCK_MONOTONIC, ns */
    size_t size;
    uint8_t bytes[];
};

static struct {
    const char *host, *advertised;
    uint16_t port, advertised_port;
    int32_t node_id, default_partitions;
    int64_t delay; /* ns */
    bool silent, sink;
} options = {.host = "127.0.0.1", .node_id = 1, .default_partitions = 1};

static struct topic *topics[MAX_TOPICS], *buckets[NAME_BUCKETS];
static int topic_count, partition_total;
static int64_t produce_requests, record_bytes, next_producer_id = 1000;
static struct delayed_reply *delay_head, **delay_tail = &delay_head;
static struct connection *closed_connections;
static int epoll, timer;
static char listener_tag, signal_tag, timer_tag, stdin_tag; /* tell epoll's events apart by address */

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void *checked(void *memory) {
    if (!memory) die("ack_broker: memory");
    return memory;
}

/* ---- reading: bounds-checked, big-endian; `flexible` is KIP-482's compact form ---- */

static size_t left(const struct reader *r) { return (size_t)(r->end - r->at); }

static const uint8_t *take(struct reader *r, int64_t size) {
    if (r->bad || size < 0 || (uint64_t)size > left(r)) {
        r->bad = true;
        return NULL;
    }
    r->at += size;
    return r->at - size;
}

static int64_t int_at(const uint8_t *p, int width) {
    uint64_t value = p[0] & 0x80 ? UINT64_MAX : 0;
    for (int i = 0; i < width; i++) value = value << 8 | p[i];
    return (int64_t)value;
}

static int64_t read_int(struct reader *r, int width) {
    const uint8_t *p = take(r, width);
    return p ? int_at(p, width) : 0;
}

static int64_t read_uvarint(struct reader *r) {
    uint64_t value = 0;
    for (int shift = 0; shift < 35; shift += 7) {
        const uint8_t *p = take(r, 1);
        if (!p) return 0;
        value |= (uint64_t)(*p & 0x7f) << shift;
        if (!(*p & 0x80)) return (int64_t)value;
    }
    r->bad = true;
    return 0;
}

static int64_t read_size(struct reader *r, bool flexible, int width) {
    int64_t size = flexible ? read_uvarint(r) - 1 : read_int(r, width);
    if (size < -1 || size > (int64_t)left(r)) r->bad = true;
    return r->bad ? -1 : size;
}

static struct text read_string(struct reader *r, bool flexible) {
    int64_t size = read_size(r, flexible, 2);
    return (struct text){size < 0 ? NULL : (const char *)take(r, size), size};
}

/* An element takes at least one byte, so read_size() has already bounded a count by the bytes that are left. */
static int64_t read_count(struct reader *r, bool flexible) { return read_size(r, flexible, 4); }

static void skip_tags(struct reader *r, bool flexible) {
    for (int64_t count = flexible ? read_uvarint(r) : 0; count > 0 && !r->bad; count--) {
        read_uvarint(r);
        take(r, read_uvarint(r));
    }
}

/* ---- writing ---- */

static uint8_t *reserve(struct buffer *b, size_t size) {
    if (b->capacity - b->end < size && b->start) {
        memmove(b->data, b->data + b->start, b->end - b->start);
        b->end -= b->start;
        b->start = 0;
    }
    if (b->capacity - b->end < size) {
        b->capacity = b->end + size > 2 * b->capacity ? b->end + size : 2 * b->capacity;
        b->data = checked(realloc(b->data, b->capacity));
    }
    return b->data + b->end;
}

static void write_bytes(struct buffer *b, const void *bytes, size_t size) {
    uint8_t *to = reserve(b, size);
    if (size) memcpy(to, bytes, size);
    b->end += size;
}

static void put_int(uint8_t *to, int64_t value, int width) {
    for (int i = 0; i < width; i++) to[i] = (uint8_t)((uint64_t)value >> (8 * (width - 1 - i)));
}

static void write_int(struct buffer *b, int64_t value, int width) {
    put_int(reserve(b, (size_t)width), value, width);
    b->end += (size_t)width;
}

static void write_uvarint(struct buffer *b, uint64_t value) {
    for (; value >= 0x80; value >>= 7) write_int(b, (int64_t)(value | 0x80) & 0xff, 1);
    write_int(b, (int64_t)value, 1);
}

static void write_size(struct buffer *b, int64_t size, bool flexible, int width) {
    if (flexible) write_uvarint(b, (uint64_t)(size + 1));
    else write_int(b, size, width);
}

static void write_string(struct buffer *b, struct text s, bool flexible) {
    write_size(b, s.size, flexible, 2);
    if (s.size > 0) write_bytes(b, s.data, (size_t)s.size);
}

static void write_count(struct buffer *b, int64_t count, bool flexible) { write_size(b, count, flexible, 4); }

static void write_no_tags(struct buffer *b, bool flexible) {
    if (flexible) write_uvarint(b, 0);
}

static const struct text null_text = {NULL, -1};

static struct text text_of(const char *s) { return (struct text){s, (int64_t)strlen(s)}; }

/* ---- topics ---- */

static uint64_t fnv1a(struct text s, uint64_t hash) {
    for (int64_t i = 0; i < s.size; i++) hash = (hash ^ (uint8_t)s.data[i]) * 0x100000001b3u;
    return hash;
}

/* The id is made of the name alone, so that it is the same in every run; its first half also finds the bucket. */
static void topic_id(struct text name, uint8_t id[16]) {
    put_int(id, (int64_t)fnv1a(name, 0xcbf29ce484222325u), 8);
    put_int(id + 8, (int64_t)fnv1a(name, 0x84222325cbf29ce4u) | 1, 8); /* never Kafka's reserved zero id */
}

static struct topic **bucket(const uint8_t id[16]) { return &buckets[(id[6] << 8 | id[7]) % NAME_BUCKETS]; }

static struct topic *topic_with_id(const uint8_t id[16]) {
    struct topic *t = *bucket(id);
    while (t && memcmp(t->id, id, 16)) t = t->next_in_bucket;
    return t;
}

static struct topic *topic_named(struct text name) {
    uint8_t id[16];
    topic_id(name, id);
    struct topic *t = *bucket(id);
    while (t && (t->name_size != name.size || memcmp(t->name, name.data, (size_t)name.size))) t = t->next_in_bucket;
    return t;
}

static enum error create_topic(struct text name, int32_t partitions) {
    static const char legal[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    if (name.size < 1 || name.size > MAX_TOPIC_NAME) return INVALID_TOPIC_EXCEPTION;
    for (int64_t i = 0; i < name.size; i++)
        if (!name.data[i] || !strchr(legal, name.data[i])) return INVALID_TOPIC_EXCEPTION;
    if (topic_count == MAX_TOPICS || partitions > MAX_PARTITIONS - partition_total) return POLICY_VIOLATION;
    struct topic *t = checked(calloc(1, sizeof *t));
    t->partitions = checked(calloc((size_t)partitions, sizeof *t->partitions));
    t->partition_count = partitions;
    t->name_size = (int)name.size;
    memcpy(t->name, name.data, (size_t)name.size); /* calloc left the closing zero */
    topic_id(name, t->id);
    t->next_in_bucket = *bucket(t->id);
    *bucket(t->id) = t;
    topics[topic_count++] = t;
    partition_total += partitions;
    return NONE;
}

static void print_counts(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double cpu = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                 (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    printf("{\"cpu_seconds\": %.6f, \"produce_requests\": %lld, \"record_bytes\": %lld, \"topics\": {", cpu,
           (long long)produce_requests, (long long)record_bytes);
    for (int i = 0; i < topic_count; i++) {
        printf("%s\"%s\": {\"records\": [", i ? ", " : "", topics[i]->name);
        for (int p = 0; p < topics[i]->partition_count; p++)
            printf("%s%lld", p ? ", " : "", (long long)topics[i]->partitions[p].records);
        printf("], \"batches\": [");
        for (int p = 0; p < topics[i]->partition_count; p++)
            printf("%s%lld", p ? ", " : "", (long long)topics[i]->partitions[p].batches);
        printf("]}");
    }
    printf("}}\n");
    fflush(stdout);
}

/* ---- requests ---- */

/* Record batch v2: baseOffset 0, batchLength 8, leaderEpoch 12, magic 16, crc 17, attributes 21, lastOffsetDelta 23,
 * timestamps 27 and 35, producerId 43, epoch 51, baseSequence 53, count 57, records 61. Produce v3+ carries exactly
 * one batch a partition. */
static enum error append(struct topic *t, int64_t index, const uint8_t *batch, int64_t size, int64_t *base_offset) {
    if (index < 0 || index >= t->partition_count) return UNKNOWN_TOPIC_OR_PARTITION;
    if (size < 61) return CORRUPT_MESSAGE;
    if (batch[16] != 2) return UNSUPPORTED_FOR_MESSAGE_FORMAT;
    if (int_at(batch + 8, 4) != size - 12) return CORRUPT_MESSAGE;
    int64_t count = int_at(batch + 57, 4);
    if (count < 1 || int_at(batch + 23, 4) != count - 1) return INVALID_RECORD;
    *base_offset = t->partitions[index].records;
    t->partitions[index].records += count;
    t->partitions[index].batches++;
    record_bytes += size;
    return NONE;
}

static enum outcome answer_produce(struct reader *r, int version, bool flexible, struct buffer *out) {
    bool failed = false;
    if (version < 3) return REFUSE;
    read_string(r, flexible); /* transactional id */
    int64_t acks = read_int(r, 2);
    read_int(r, 4); /* time-out */
    int64_t topics_left = read_count(r, flexible);
    write_count(out, topics_left < 0 ? 0 : topics_left, flexible);
    for (; topics_left > 0 && !r->bad; topics_left--) {
        struct topic *t;
        if (version >= 13) {
            const uint8_t *id = take(r, 16);
            if (!id) break;
            t = topic_with_id(id);
            write_bytes(out, id, 16);
        } else {
            struct text name = read_string(r, flexible);
            t = topic_named(name);
            write_string(out, name, flexible);
        }
        int64_t partitions_left = read_count(r, flexible);
        write_count(out, partitions_left < 0 ? 0 : partitions_left, flexible);
        for (; partitions_left > 0 && !r->bad; partitions_left--) {
            int64_t index = read_int(r, 4), base_offset = -1, size = read_size(r, flexible, 4);
            const uint8_t *records = take(r, size < 0 ? 0 : size);
            skip_tags(r, flexible);
            if (r->bad) break;
            enum error error = acks < -1 || acks > 1 ? INVALID_REQUIRED_ACKS
                               : t                   ? append(t, index, records, size, &base_offset)
                               : version >= 13       ? UNKNOWN_TOPIC_ID
                                                     : UNKNOWN_TOPIC_OR_PARTITION;
            failed |= error != NONE;
            write_int(out, index, 4);
            write_int(out, error, 2);
            write_int(out, base_offset, 8);
            write_int(out, -1, 8); /* log append time */
            if (version >= 5) write_int(out, error ? -1 : 0, 8); /* log start offset */
            if (version >= 8) {
                write_count(out, 0, flexible); /* record errors */
                write_string(out, null_text, flexible);
            }
            write_no_tags(out, flexible);
        }
        skip_tags(r, flexible);
        write_no_tags(out, flexible);
    }
    skip_tags(r, flexible);
    write_int(out, 0, 4); /* throttle time */
    write_no_tags(out, flexible);
    produce_requests++;
    if (acks == 0) return failed ? REFUSE : NO_REPLY; /* the only way to tell an acks=0 producer of an error */
    return options.silent ? NO_REPLY : REPLY;
}

static void write_topic(struct buffer *out, int version, bool flexible, enum error error, struct text name,
                        const uint8_t id[16], const struct topic *t) {
    write_int(out, error, 2);
    write_string(out, name.size < 0 && version < 12 ? text_of("") : name, flexible);
    if (version >= 10) write_bytes(out, id, 16);
    if (version >= 1) write_int(out, 0, 1); /* internal */
    write_count(out, t ? t->partition_count : 0, flexible);
    for (int p = 0; t && p < t->partition_count; p++) {
        write_int(out, NONE, 2);
        write_int(out, p, 4);
        write_int(out, options.node_id, 4);
        if (version >= 7) write_int(out, 0, 4); /* leader epoch */
        for (int list = 0; list < 2; list++) {  /* replicas, in-sync replicas */
            write_count(out, 1, flexible);
            write_int(out, options.node_id, 4);
        }
        if (version >= 5) write_count(out, 0, flexible); /* offline replicas */
        write_no_tags(out, flexible);
    }
    if (version >= 8) write_int(out, INT32_MIN, 4); /* authorized operations: not asked */
    write_no_tags(out, flexible);
}

static void write_asked_topic(struct reader *r, int version, bool flexible, bool may_create, struct buffer *out) {
    static const uint8_t no_id[16];
    const uint8_t *id = version >= 10 ? take(r, 16) : no_id;
    struct text name = read_string(r, flexible);
    skip_tags(r, flexible);
    if (r->bad) return;
    if (name.size < 0) {
        struct topic *t = topic_with_id(id);
        if (t) name = (struct text){t->name, t->name_size};
        write_topic(out, version, flexible, t ? NONE : UNKNOWN_TOPIC_ID, name, id, t);
        return;
    }
    enum error error = NONE;
    struct topic *t = topic_named(name);
    if (!t) error = may_create ? create_topic(name, options.default_partitions) : UNKNOWN_TOPIC_OR_PARTITION;
    if (!t && !error) t = topic_named(name);
    write_topic(out, version, flexible, error, name, t ? t->id : no_id, t);
}

static enum outcome answer_metadata(struct reader *r, int version, bool flexible, struct buffer *out) {
    int64_t count = read_count(r, flexible);
    struct reader asked = *r; /* read twice: the flag for creating topics follows the names */
    for (int64_t i = 0; i < count && !r->bad; i++) {
        if (version >= 10) take(r, 16);
        read_string(r, flexible);
        skip_tags(r, flexible);
    }
    bool may_create = version < 4 || read_int(r, 1);
    take(r, version >= 8 && version <= 10 ? 2 : version >= 8 ? 1 : 0); /* include authorized operations */
    skip_tags(r, flexible);
    if (r->bad) return REFUSE;

    if (version >= 3) write_int(out, 0, 4); /* throttle time */
    write_count(out, 1, flexible);
    write_int(out, options.node_id, 4);
    write_string(out, text_of(options.advertised), flexible);
    write_int(out, options.advertised_port, 4);
    if (version >= 1) write_string(out, null_text, flexible); /* rack */
    write_no_tags(out, flexible);
    if (version >= 2) write_string(out, text_of("ack-broker"), flexible);
    if (version >= 1) write_int(out, options.node_id, 4); /* controller */
    if (count < 0 || (count == 0 && version == 0)) {
        write_count(out, topic_count, flexible);
        for (int i = 0; i < topic_count && out->end < MAX_REPLY; i++)
            write_topic(out, version, flexible, NONE, (struct text){topics[i]->name, topics[i]->name_size},
                        topics[i]->id, topics[i]);
    } else {
        write_count(out, count, flexible);
        for (; count > 0 && out->end < MAX_REPLY; count--) write_asked_topic(&asked, version, flexible, may_create, out);
    }
    if (version >= 8 && version <= 10) write_int(out, INT32_MIN, 4);
    if (version >= 13) write_int(out, NONE, 2);
    write_no_tags(out, flexible);
    return out->end < MAX_REPLY ? REPLY : REFUSE;
}

static enum outcome answer_init_producer_id(struct reader *r, int version, bool flexible, struct buffer *out) {
    read_string(r, flexible);
    take(r, version >= 3 ? 4 + 8 + 2 : 4); /* transaction time-out; producer id and epoch */
    skip_tags(r, flexible);
    write_int(out, 0, 4); /* throttle time */
    write_int(out, NONE, 2);
    write_int(out, next_producer_id++, 8);
    write_int(out, 0, 2);
    write_no_tags(out, flexible);
    return REPLY;
}

static void write_coordinator(struct buffer *out, bool flexible) {
    write_int(out, options.node_id, 4);
    write_string(out, text_of(options.advertised), flexible);
    write_int(out, options.advertised_port, 4);
}

static enum outcome answer_find_coordinator(struct reader *r, int version, bool flexible, struct buffer *out) {
    if (version >= 1) write_int(out, 0, 4); /* throttle time */
    if (version < 4) {
        read_string(r, flexible);
        if (version >= 1) take(r, 1);
        write_int(out, NONE, 2);
        if (version >= 1) write_string(out, null_text, flexible);
        write_coordinator(out, flexible);
    } else {
        take(r, 1);
        int64_t keys = read_count(r, flexible);
        write_count(out, keys < 0 ? 0 : keys, flexible);
        for (; keys > 0 && !r->bad; keys--) {
            struct text key = read_string(r, flexible);
            if (key.size < 0) return REFUSE;
            write_string(out, key, flexible);
            write_coordinator(out, flexible);
            write_int(out, NONE, 2);
            write_string(out, null_text, flexible);
            write_no_tags(out, flexible);
        }
    }
    skip_tags(r, flexible);
    write_no_tags(out, flexible);
    return REPLY;
}

static enum outcome answer_api_versions(struct reader *r, int version, bool flexible, struct buffer *out);

static const struct api {
    int key, min, max, flexible_from;
    enum outcome (*answer)(struct reader *, int version, bool flexible, struct buffer *out);
} apis[] = {
    /* From 0, as Kafka 4 says and does not serve: librdkafka compresses only where it is told so (KAFKA-18659). */
    {0, 0, 13, 9, answer_produce},
    /* Fetch is announced, not served: librdkafka takes its absence for a broker without record batches v2. */
    {1, 4, 12, 12, NULL},
    {3, 0, 13, 9, answer_metadata},
    {10, 0, 6, 3, answer_find_coordinator},
    {18, 0, 4, 3, answer_api_versions},
    {22, 0, 5, 2, answer_init_producer_id},
};
enum { API_COUNT = sizeof apis / sizeof *apis, API_VERSIONS = 18 };

static enum outcome answer_api_versions(struct reader *r, int version, bool flexible, struct buffer *out) {
    bool known = version <= 4;
    if (!known) { /* KIP-511: a version that is too new gets an error shaped as v0 */
        version = 0;
        flexible = false;
    }
    r->at = r->end; /* the client's name and version are of no interest */
    write_int(out, known ? NONE : UNSUPPORTED_VERSION, 2);
    write_count(out, API_COUNT, flexible);
    for (int i = 0; i < API_COUNT; i++) {
        write_int(out, apis[i].key, 2);
        write_int(out, apis[i].min, 2);
        write_int(out, apis[i].max, 2);
        write_no_tags(out, flexible);
    }
    if (version >= 1) write_int(out, 0, 4); /* throttle time */
    write_no_tags(out, flexible);
    return REPLY;
}

/* Writes the answer to one request, without its length, behind what `out` holds. */
static enum outcome answer(const uint8_t *frame, size_t size, struct buffer *out) {
    struct reader r = {frame, frame + size, false};
    int key = (int)read_int(&r, 2), version = (int)read_int(&r, 2);
    int64_t correlation_id = read_int(&r, 4);
    read_string(&r, false); /* client id: never compact, not even in a flexible header */
    const struct api *api = apis;
    while (api < apis + API_COUNT && api->key != key) api++;
    if (api == apis + API_COUNT || !api->answer || version < api->min) return REFUSE;
    if (version > api->max && key != API_VERSIONS) return REFUSE;
    bool flexible = version >= api->flexible_from;
    skip_tags(&r, flexible);
    if (r.bad) return REFUSE;
    write_int(out, correlation_id, 4);
    write_no_tags(out, flexible && key != API_VERSIONS); /* its answer keeps the old header for ever */
    enum outcome outcome = api->answer(&r, version, flexible, out);
    return r.bad || r.at != r.end ? REFUSE : outcome;
}

/* ---- connections ---- */

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000 + t.tv_nsec;
}

static void set_timer(void) {
    int64_t due = delay_head ? delay_head->due : 0;
    struct itimerspec at = {.it_value = {due / 1000000000, due % 1000000000}};
    if (timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL)) die("timerfd_settime");
}

/* Freed after the current round of events, and after the last of its delayed replies. */
static void close_connection(struct connection *c) {
    if (c->closed) return;
    c->closed = true;
    close(c->fd);
    c->next_closed = closed_connections;
    closed_connections = c;
}

static void free_closed(void) {
    struct connection **link = &closed_connections;
    while (*link) {
        struct connection *c = *link;
        if (c->delayed) {
            link = &c->next_closed;
            continue;
        }
        *link = c->next_closed;
        free(c->in.data);
        free(c->out.data);
        free(c);
    }
}

static void queue_reply(struct connection *c, struct buffer *reply) {
    put_int(reply->data, (int64_t)reply->end - 4, 4);
    if (!options.delay) {
        write_bytes(&c->out, reply->data, reply->end);
        return;
    }
    struct delayed_reply *d = checked(malloc(sizeof *d + reply->end));
    *d = (struct delayed_reply){.connection = c, .due = now() + options.delay, .size = reply->end};
    memcpy(d->bytes, reply->data, reply->end);
    c->delayed++;
    *delay_tail = d; /* one delay for all, so the queue is in order of its due times */
    delay_tail = &d->next;
    if (delay_head == d) set_timer();
}

static size_t held(const struct buffer *b) { return b->end - b->start; }

static bool is_behind(const struct connection *c) {
    return held(&c->out) > MAX_BACKLOG || c->delayed > 100000;
}

static int64_t frame_size(const struct connection *c) { return int_at(c->in.data + c->in.start, 4); }

static bool has_frame(const struct connection *c) {
    return held(&c->in) >= 4 && (int64_t)held(&c->in) - 4 >= frame_size(c);
}

static bool answer_frames(struct connection *c) {
    static struct buffer reply;
    while (held(&c->in) >= 4 && !is_behind(c)) {
        int64_t size = frame_size(c);
        if (size < 8 || size > MAX_FRAME) return false;
        if (!has_frame(c)) return true;
        reply.start = reply.end = 0;
        write_int(&reply, 0, 4);
        enum outcome outcome = answer(c->in.data + c->in.start + 4, (size_t)size, &reply);
        if (outcome == REFUSE) return false;
        if (outcome == REPLY) queue_reply(c, &reply);
        c->in.start += 4 + (size_t)size;
        if (!held(&c->in)) c->in.start = c->in.end = 0;
    }
    return true;
}

static bool flush_replies(struct connection *c) {
    while (held(&c->out)) {
        ssize_t sent = send(c->fd, c->out.data + c->out.start, held(&c->out), MSG_NOSIGNAL);
        if (sent < 0) return errno == EAGAIN || errno == EINTR;
        c->out.start += (size_t)sent;
    }
    c->out.start = c->out.end = 0;
    return true;
}

static void watch(struct connection *c) {
    uint32_t wanted = (is_behind(c) ? 0 : EPOLLIN) | (held(&c->out) ? EPOLLOUT : 0);
    if (wanted == c->watched) return;
    c->watched = wanted;
    struct epoll_event event = {.events = wanted, .data.ptr = c};
    if (epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &event)) close_connection(c);
}

static bool drop(struct connection *c) {
    static uint8_t dropped[1 << 20];
    ssize_t got = recv(c->fd, dropped, sizeof dropped, 0);
    if (got > 0) record_bytes += got;
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

/* Grows with what has arrived, not with what the peer announces. */
static bool receive(struct connection *c) {
    if (options.sink) return drop(c);
    reserve(&c->in, held(&c->in) > 65536 ? held(&c->in) : 65536);
    ssize_t got = recv(c->fd, c->in.data + c->in.end, c->in.capacity - c->in.end, 0);
    if (got <= 0) return got < 0 && (errno == EAGAIN || errno == EINTR);
    c->in.end += (size_t)got;
    return true;
}

static void serve(struct connection *c, uint32_t events) {
    if (c->closed) return;
    bool alive = !(events & (EPOLLHUP | EPOLLERR));
    if (alive && events & EPOLLIN) alive = receive(c);
    do alive = alive && flush_replies(c) && answer_frames(c) && flush_replies(c);
    while (alive && has_frame(c) && !is_behind(c)); /* no event would come for a frame that is already here */
    if (!alive) close_connection(c);
    else watch(c);
}

static void accept_all(int listener) {
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE) usleep(10000); /* epoll would report it at once again */
            return;
        }
        int on = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct connection *c = checked(calloc(1, sizeof *c));
        c->fd = fd;
        c->watched = EPOLLIN;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
    }
}

static void release_due(void) {
    uint64_t expirations;
    if (read(timer, &expirations, sizeof expirations) < 0 && errno != EAGAIN) die("timerfd");
    int64_t time = now();
    while (delay_head && delay_head->due <= time) {
        struct delayed_reply *d = delay_head;
        struct connection *c = d->connection;
        if (!(delay_head = d->next)) delay_tail = &delay_head;
        c->delayed--;
        if (!c->closed) {
            write_bytes(&c->out, d->bytes, d->size);
            serve(c, 0);
        }
        free(d);
    }
    set_timer();
}

/* ---- the program ---- */

static bool obey(void) {
    static char line[64];
    static size_t size;
    ssize_t got = read(STDIN_FILENO, line + size, sizeof line - size);
    if (got <= 0) return got < 0 && errno == EINTR;
    size += (size_t)got;
    char *newline;
    while ((newline = memchr(line, '\n', size))) {
        *newline = 0;
        if (!strcmp(line, "quit")) return false;
        if (!strcmp(line, "counts")) print_counts();
        size -= (size_t)(newline + 1 - line);
        memmove(line, newline + 1, size);
    }
    if (size == sizeof line) size = 0;
    return true;
}

static long number(const char *text, long min, long max) {
    char *end;
    long value = strtol(text, &end, 10);
    if (*end || end == text || value < min || value > max) {
        fprintf(stderr, "ack_broker: %s is not a number from %ld to %ld\n", text, min, max);
        exit(2);
    }
    return value;
}

static double milliseconds(const char *text) {
    char *end;
    double value = strtod(text, &end);
    if (*end || end == text || !(value >= 0 && value <= 60000)) {
        fprintf(stderr, "ack_broker: %s is not a delay from 0 to 60000 ms\n", text);
        exit(2);
    }
    return value;
}

static void create_asked(const char *text) {
    const char *colon = strrchr(text, ':');
    struct text name = {text, colon ? colon - text : 0};
    int32_t partitions = colon ? (int32_t)number(colon + 1, 1, MAX_PARTITIONS) : 0;
    if (!colon || topic_named(name) || create_topic(name, partitions)) {
        fprintf(stderr, "ack_broker: cannot create the topic %s, expected NAME:PARTITIONS\n", text);
        exit(2);
    }
}

static void parse_options(char **arguments) {
    while (*++arguments) {
        const char *option = *arguments;
        if (!strcmp(option, "--silent") || !strcmp(option, "--sink")) {
            *(strcmp(option, "--sink") ? &options.silent : &options.sink) = true;
            continue;
        }
        const char *value = *++arguments;
        if (!value) {
            fprintf(stderr, "ack_broker: %s is unknown or lacks its value\n", option);
            exit(2);
        }
        if (!strcmp(option, "--host")) options.host = value;
        else if (!strcmp(option, "--advertise")) options.advertised = value;
        else if (!strcmp(option, "--advertise-port")) options.advertised_port = (uint16_t)number(value, 1, 65535);
        else if (!strcmp(option, "--port")) options.port = (uint16_t)number(value, 0, 65535);
        else if (!strcmp(option, "--node-id")) options.node_id = (int32_t)number(value, 0, INT32_MAX);
        else if (!strcmp(option, "--partitions")) options.default_partitions = (int32_t)number(value, 1, 1000000);
        else if (!strcmp(option, "--delay-ms")) options.delay = (int64_t)(milliseconds(value) * 1e6 + 0.5);
        else if (!strcmp(option, "--topic")) create_asked(value);
        else {
            fprintf(stderr, "ack_broker: unknown option %s\n", option);
            exit(2);
        }
    }
    if (!options.advertised) options.advertised = options.host;
    if (strlen(options.advertised) > 255) {
        fprintf(stderr, "ack_broker: the advertised host is too long\n");
        exit(2);
    }
}

static int listen_socket(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(options.port)};
    if (inet_pton(AF_INET, options.host, &address.sin_addr) != 1) {
        fprintf(stderr, "ack_broker: %s is not an IPv4 address\n", options.host);
        exit(2);
    }
    socklen_t size = sizeof address;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) ||
        bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 1024) ||
        getsockname(fd, (struct sockaddr *)&address, &size))
        die("ack_broker: listen");
    options.port = ntohs(address.sin_port);
    if (!options.advertised_port) options.advertised_port = options.port;
    return fd;
}

static int signal_descriptor(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    return signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

static void add(int fd, void *tag) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = tag};
    /* epoll refuses plain files and /dev/null; a stdin of that kind has no commands and never ends. */
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) && tag != &stdin_tag) die("epoll_ctl");
}

int main(int count, char **arguments) {
    if (count > 0) parse_options(arguments);
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    int listener = listen_socket(), signals = signal_descriptor();
    epoll = epoll_create1(EPOLL_CLOEXEC);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (epoll < 0 || timer < 0 || signals < 0) die("ack_broker: start");
    add(listener, &listener_tag);
    add(signals, &signal_tag);
    add(timer, &timer_tag);
    add(STDIN_FILENO, &stdin_tag);
    printf("listening %u\n", options.port);
    fflush(stdout);

    for (;;) {
        struct epoll_event events[64];
        int ready = epoll_wait(epoll, events, 64, -1);
        if (ready < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < ready; i++) {
            void *tag = events[i].data.ptr;
            if (tag == &listener_tag) accept_all(listener);
            else if (tag == &timer_tag) release_due();
            else if (tag == &stdin_tag) {
                if (!obey()) return 0;
            } else if (tag == &signal_tag) {
                struct signalfd_siginfo info;
                while (read(signals, &info, sizeof info) == sizeof info) {
                    if (info.ssi_signo != SIGUSR1) return 0;
                    print_counts();
                }
            } else serve(tag, events[i].events);
        }
        free_closed();
    }
}
