# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=False, freethreading_compatible=True
"""The compiled part of the request path: code that was hot in profiles and runs once per batch or Produce request.

It encodes the frame of a Produce request and the header of each batch, decodes a response that reports success for
every batch, and contains the histograms. It also hides objects from the garbage collector. The declared messages
(protocol/messages_records.py) are the reference for requests and responses, and decode every other response."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.math cimport floor, log2
from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from crc32c import crc32c

cdef extern from "Python.h":
    int PyObject_IS_GC(PyObject* thing) noexcept
    void PyObject_GC_UnTrack(PyObject* thing) noexcept

DEF PRODUCE = 0
DEF FLEXIBLE_FROM = 9
DEF TOPIC_IDS_FROM = 13
DEF LONGEST_UVARINT = 5
DEF LONGEST_STRING = 32767     # the maximum int16 length in non-flexible versions
DEF LONGEST_FRAME = 0x7FFFFFFF
DEF ID = 16                    # bytes of a topic id
DEF MAGIC = 2                  # the version of the record batch format
DEF SUMMED = 21                # the position in a batch after its checksum, which covers all bytes from here on
DEF BATCH_HEADER = 61
DEF LOG_OVERHEAD = 12          # the base offset and the length field, which the length does not include


# ------------------------------------------------------------------------------------------------- the request

cdef inline char* put_int16(char* at, int value) noexcept nogil:
    at[0] = <char>((value >> 8) & 0xFF)
    at[1] = <char>(value & 0xFF)
    return at + 2


cdef inline char* put_int32(char* at, int64_t value) noexcept nogil:
    at[0] = <char>((value >> 24) & 0xFF)
    at[1] = <char>((value >> 16) & 0xFF)
    at[2] = <char>((value >> 8) & 0xFF)
    at[3] = <char>(value & 0xFF)
    return at + 4


cdef inline char* put_int64(char* at, int64_t value) noexcept nogil:
    return put_int32(put_int32(at, value >> 32), value)


cdef inline char* put_uvarint(char* at, uint32_t value) noexcept nogil:
    while value > 0x7F:
        at[0] = <char>((value & 0x7F) | 0x80)
        value >>= 7
        at += 1
    at[0] = <char>value
    return at + 1


cdef inline char* put_count(char* at, Py_ssize_t count, bint is_flexible) noexcept nogil:
    """Write the count of an array, or the length of records."""
    return put_uvarint(at, <uint32_t>count + 1) if is_flexible else put_int32(at, count)


cdef inline char* put_string(char* at, bytes text, bint is_flexible) noexcept:
    """Write a nullable string: None is null."""
    cdef Py_ssize_t size
    if text is None:
        if is_flexible:
            at[0] = 0
            return at + 1
        return put_int16(at, -1)
    size = PyBytes_GET_SIZE(text)
    at = put_uvarint(at, <uint32_t>size + 1) if is_flexible else put_int16(at, <int>size)
    memcpy(at, PyBytes_AS_STRING(text), size)
    return at + size


cdef Py_ssize_t room_for(bytes text) except -1:
    """Return the maximum number of bytes that a string needs. Raises ValueError if no version can encode it."""
    if text is None:
        return LONGEST_UVARINT
    if PyBytes_GET_SIZE(text) > LONGEST_STRING:
        raise ValueError(f"a string of {PyBytes_GET_SIZE(text)} bytes exceeds {LONGEST_STRING} bytes")
    return LONGEST_UVARINT + PyBytes_GET_SIZE(text)


cdef inline char* put_no_tags(char* at, bint is_flexible) noexcept nogil:
    if is_flexible:
        at[0] = 0
        at += 1
    return at


def batch_header(payload, int attributes, int record_count, int64_t base_timestamp, int64_t max_timestamp,
                 int64_t producer_id, int producer_epoch, int first_sequence):
    """Return the header of a record batch, including the checksum of the batch. recordbatch.py describes the layout.

    The broker assigns the base offset, and it ignores the leader epoch.
    """
    cdef char header[BATCH_HEADER]
    cdef char* at = header
    at = put_int64(at, 0)
    at = put_int32(at, BATCH_HEADER - LOG_OVERHEAD + len(payload))
    at = put_int32(at, -1)
    at[0] = MAGIC
    at = header + SUMMED
    at = put_int16(at, attributes)
    at = put_int32(at, record_count - 1)
    at = put_int64(at, base_timestamp)
    at = put_int64(at, max_timestamp)
    at = put_int64(at, producer_id)
    at = put_int16(at, producer_epoch)
    at = put_int32(at, first_sequence)
    at = put_int32(at, record_count)
    assert at == header + BATCH_HEADER
    cdef int64_t checksum = crc32c(payload, crc32c(PyBytes_FromStringAndSize(header + SUMMED, BATCH_HEADER - SUMMED)))
    put_int32(header + SUMMED - 4, checksum)
    return PyBytes_FromStringAndSize(header, BATCH_HEADER)


def encode_produce(int version, int32_t correlation_id, str client_id, str transactional_id, int16_t acks,
                   int32_t timeout_ms, list topics):
    """Encode a Produce request.

    Args:
        topics: for each topic (name, topic id as a number, [ProducerBatch]), with at most one batch per partition.

    Returns:
        A tuple of the frame and the places of the batches. The frame is a list of segments, the first of which starts
        with the length: batch headers are copied, records are not. The places are {topic name or id, as bytes:
        {partition: number of the batch}}.

    Raises:
        ValueError: a value does not fit its type on the wire.
    """
    cdef bint is_flexible = version >= FLEXIBLE_FROM
    cdef bytes client = None if client_id is None else client_id.encode()
    cdef bytes transactional = None if transactional_id is None else transactional_id.encode()
    cdef Py_ssize_t room = 64 + room_for(client) + room_for(transactional)
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t number = 0
    cdef bytes key, header
    cdef list batches, keys = [], sealed = [], segments = []
    cdef Py_ssize_t count
    cdef dict places = {}, numbers
    for name, topic_id, batches in topics:
        key = topic_id.to_bytes(ID, "big") if version >= TOPIC_IDS_FROM else (<str>name).encode()
        room += room_for(key) + LONGEST_UVARINT + 1
        # No broker should report two topics with the same id. If one does, read_success returns None.
        numbers = places.setdefault(key, {})
        keys.append((key, len(batches)))
        for batch in batches:
            header, records = batch.segments
            partition = batch.queue.partition
            sealed.append((partition, header, records))
            numbers[partition] = number
            number += 1
            room += 4 + LONGEST_UVARINT + PyBytes_GET_SIZE(header) + 1
            total += len(records)

    # `room` includes the maximum size of each field below, so `at` never leaves `out`.
    cdef bytearray out = bytearray(room)
    cdef char* start = out
    cdef char* done = start
    cdef char* at = start + 4
    at = put_int16(at, PRODUCE)
    at = put_int16(at, version)
    at = put_int32(at, correlation_id)
    at = put_string(at, client, False)             # never compact, so that any broker can read it (KIP-511)
    at = put_no_tags(at, is_flexible)
    at = put_string(at, transactional, is_flexible)
    at = put_int16(at, acks)
    at = put_int32(at, timeout_ms)
    at = put_count(at, len(keys), is_flexible)
    number = 0
    cdef list cuts = []
    for key, count in keys:
        if version >= TOPIC_IDS_FROM:
            memcpy(at, PyBytes_AS_STRING(key), ID)
            at += ID
        else:
            at = put_string(at, key, is_flexible)
        at = put_count(at, count, is_flexible)
        for _ in range(count):
            partition, header, records = sealed[number]
            number += 1
            at = put_int32(at, partition)
            at = put_count(at, PyBytes_GET_SIZE(header) + len(records), is_flexible)
            memcpy(at, PyBytes_AS_STRING(header), PyBytes_GET_SIZE(header))
            at += PyBytes_GET_SIZE(header)
            cuts.append((at - start, records))
            at = put_no_tags(at, is_flexible)
        at = put_no_tags(at, is_flexible)
    at = put_no_tags(at, is_flexible)
    assert number == len(sealed) and at - start <= room
    total += at - start - 4
    if total > LONGEST_FRAME:
        raise ValueError(f"a request of {total} bytes exceeds {LONGEST_FRAME} bytes")
    put_int32(start, total)

    cdef Py_ssize_t cut
    for cut, records in cuts:
        segments.append(PyBytes_FromStringAndSize(done, start + cut - done))
        segments.append(records)
        done = start + cut
    if done < at:
        segments.append(PyBytes_FromStringAndSize(done, at - done))
    return segments, places


# ------------------------------------------------------------------------------------------------ the response

cdef inline int64_t get_int(const unsigned char* at, int size) noexcept nogil:
    cdef uint64_t value = 0
    cdef int i
    for i in range(size):
        value = (value << 8) | at[i]
    if size == 2:
        return <int16_t>value
    return <int32_t>value if size == 4 else <int64_t>value


cdef inline const unsigned char* skip_count(const unsigned char* at, const unsigned char* end, Py_ssize_t count,
                                            bint is_flexible) noexcept nogil:
    """Return the position after an encoded count, or NULL if the bytes are not the shortest encoding of `count`."""
    cdef char expected[LONGEST_UVARINT]
    cdef Py_ssize_t size = put_count(expected, count, is_flexible) - expected
    if end - at < size or memcmp(at, expected, size) != 0:
        return NULL
    return at + size


def read_success(int version, bytes frame, int32_t correlation_id, dict places):
    """Decode the response to a request with these `places`, if it reports success for every batch and nothing else.

    Returns:
        [(number of the batch, base offset, log append time, log start offset)] in the order of the response, and the
        throttle time in ms. None for any other response, including a malformed one: use the declared decoder.
    """
    cdef bint is_flexible = version >= FLEXIBLE_FROM
    cdef const unsigned char* at = <const unsigned char*>PyBytes_AS_STRING(frame)
    cdef const unsigned char* end = at + PyBytes_GET_SIZE(frame)
    cdef int fixed = 4 + 2 + 8 + 8 + (8 if version >= 5 else 0)
    cdef Py_ssize_t size
    cdef list found = []
    cdef dict numbers
    cdef set seen = set()
    if end - at < 5 or get_int(at, 4) != correlation_id:
        return None
    at += 4
    if is_flexible:
        if at[0] != 0:                             # the header has tags
            return None
        at += 1
    at = skip_count(at, end, len(places), is_flexible)
    if at == NULL:
        return None
    for _ in range(len(places)):
        if version >= TOPIC_IDS_FROM:
            size = ID
        elif is_flexible:
            # The length of a name of more than 126 bytes takes two bytes; leave this case to the declared decoder.
            if end - at < 1 or not 0 < at[0] <= 127:
                return None
            size = at[0] - 1
            at += 1
        else:
            if end - at < 2:
                return None
            size = get_int(at, 2)
            at += 2
        if not 0 <= size <= end - at:
            return None
        known = places.get(PyBytes_FromStringAndSize(<const char*>at, size))
        if known is None:
            return None
        at += size
        numbers = known
        at = skip_count(at, end, len(numbers), is_flexible)
        if at == NULL:
            return None
        for _ in range(len(numbers)):
            if end - at < fixed or get_int(at + 4, 2) != 0:
                return None
            number = numbers.get(get_int(at, 4))
            if number is None or number in seen:
                return None
            seen.add(number)
            found.append((number, get_int(at + 6, 8), get_int(at + 14, 8), get_int(at + 22, 8) if version >= 5 else -1))
            at += fixed
            if version >= 8:
                at = skip_count(at, end, 0, is_flexible)      # record_errors: must be empty
                if at == NULL or end - at < 2:
                    return None
                if is_flexible and (at[0] != 0 or at[1] != 0) or not is_flexible and get_int(at, 2) != -1:
                    return None                    # an error message or a tag is present
                at += 2
        if is_flexible:
            if end - at < 1 or at[0] != 0:
                return None
            at += 1
    if end - at != (5 if is_flexible else 4) or is_flexible and at[4] != 0:
        return None
    return found, get_int(at, 4)


# ---------------------------------------------------------------------------------------------- the histograms

DEF GROWTH = 4                 # buckets per doubling
DEF LOWEST = -120              # 2**-30, about 1e-9
DEF HIGHEST = 280              # 2**70

cdef class Buckets:
    """Counts durations or sizes in buckets that grow by a factor of 2**(1/4). Memory use is constant, and quantiles are
    at most 19% off."""

    cdef int64_t buckets[HIGHEST - LOWEST + 1]
    cdef readonly int64_t count
    cdef readonly double total
    cdef readonly double maximum

    def add(self, double value, int64_t times=1):
        cdef double bucket = LOWEST
        if value > 1e-9:
            bucket = floor(log2(value) * GROWTH)
            bucket = min(max(bucket, <double>LOWEST), <double>HIGHEST)
        self.buckets[<int>bucket - LOWEST] += times
        self.count += times
        self.total += value * times
        if value > self.maximum:
            self.maximum = value

    def filled(self):
        """Return (upper bound, count) for each non-empty bucket, in ascending order. The counts are not cumulative."""
        cdef int index
        return tuple([
            (2.0 ** ((index + LOWEST + 1) / <double>GROWTH), self.buckets[index])
            for index in range(HIGHEST - LOWEST + 1) if self.buckets[index]
        ])

    def quantile(self, double q):
        """Return the `q`-quantile of the values (0 <= q <= 1); 0.0 if there are no values."""
        cdef double left = q * self.count
        cdef int index
        for index in range(HIGHEST - LOWEST + 1):
            if self.buckets[index]:
                left -= self.buckets[index]
                if left <= 0:
                    return min(2.0 ** ((index + LOWEST + 1) / <double>GROWTH), self.maximum)
        return self.maximum


# ------------------------------------------------------------------------------------------- the garbage collector

cpdef untrack(thing):
    """Hide an object from the garbage collector, so that a full collection need not visit it.

    The object must never be part of a reference cycle. There is one such object for each partition of a cluster, and a
    collection that visits 800,000 of them blocks the event loop for a second."""
    if PyObject_IS_GC(<PyObject*>thing):
        PyObject_GC_UnTrack(<PyObject*>thing)


def untracked(tuple things not None):
    """Hide a tuple and its elements from the garbage collector, as untrack() does, and return it."""
    for thing in things:
        untrack(thing)
    untrack(things)
    return things
