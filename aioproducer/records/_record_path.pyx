# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=False, freethreading_compatible=True
"""The compiled part of a record's path: from `send` to the batch, and from the broker's response to the delivery.

Most of this code runs once per record; a few methods, such as freeze, complete and split_into, run once per batch. Most
other code that runs once per batch or less often is Python (producer.py, accumulator.py, batch.py). The tests compare
the encoder with one in plain Python, tests/support/oracle.py.

    RecordPath    base of Producer: send, try_send, send_and_wait
    Topic         the part of a topic's state that a record needs: the queues and the sticky partition
    PartitionQueue   the deque of batches of one partition, and the open batch at its end
    Batch         base of ProducerBatch: the encoded records and their deliveries
    Delivery      (batch, index): a future, as asyncio sees it
    BufferMemory  the bytes that may be buffered
    Rows          the columns of one send_many call, and the partition of each row (_columns.pxi)
    Serialization   the serializers of one record, called without leaving compiled code (_user_code.pxi)
    Gathering     one wait for many deliveries (_gathering.pxi)
    Callbacks     one call in the loop for the callbacks of many deliveries (_callbacks.pxi)

The event loop's thread writes all of this state. Other threads complete and compress batches, and (with the blocking
producer) read and drop deliveries. In Python builds without the GIL, a Mutex or an atomic access guards the state that
threads share.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_ND, PyBuffer_FillInfo, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItemWithError
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

import asyncio
import contextvars
import os
import sys
from asyncio import CancelledError, InvalidStateError
from bisect import bisect_left, insort
from collections import deque
from copy import copy
from enum import Enum
from operator import index

from aioproducer.errors import (
    ForkedError, InvalidRecordError, ProducerClosed, ProducerNotStartedError, RecordTooLargeError,
    UnknownPartitionError, WrongLoopError,
)
from aioproducer.records.pending_record import PendingRecord
from aioproducer.types import ENDS_OF_THE_PROGRAM, ProducerRecord, TopicPartition

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef extern from "pythread.h":
    unsigned long PyThread_get_thread_ident()

cdef extern from *:
    """
    static void aioproducer_set_am_send(PyObject *type, int (*send)(PyObject *, PyObject *, PyObject **)) {
        ((PyTypeObject *)type)->tp_as_async->am_send = (sendfunc)send;
        PyType_Modified((PyTypeObject *)type);
    }
    """
    void aioproducer_set_am_send(PyObject* type, int (*send)(PyObject*, PyObject*, PyObject**) except -1)

cdef extern from "_portable.h":
    void aioproducer_prefetch(const char* at) noexcept nogil
    int64_t now_ms "aioproducer_now_ms"() noexcept nogil  # since 1970
    # A mutex is held only for a few assignments, and never while Python code may run; dropping the last reference to
    # an object may run such code.
    ctypedef struct Mutex "aioproducer_mutex":
        pass
    void lock "aioproducer_lock"(Mutex* mutex) noexcept nogil
    void unlock "aioproducer_unlock"(Mutex* mutex) noexcept nogil
    # A thread that reads a set flag also sees everything that was written before the flag was set.
    bint flag_is_set "aioproducer_is_set"(uint8_t* flag) noexcept nogil
    void set_flag "aioproducer_set"(uint8_t* flag, uint8_t value) noexcept nogil
    void add_to "aioproducer_add"(int* number, int more) noexcept nogil
    void publish "aioproducer_publish"() noexcept nogil

DEF HEADER = 61                # bytes in a batch before its records (DefaultRecordBatch.RECORD_BATCH_OVERHEAD)
DEF LONGEST_VARINT = 5
DEF YIELD_AFTER = 1 << 20      # bytes appended in one turn of the loop before `send` lets other tasks run, about 1 ms
DEF RECORD_COST = 512          # bytes added to each record's size when the record is counted toward YIELD_AFTER
DEF BATCH_COST = 8192          # likewise for each batch that is opened, which takes about as long as 16 records
DEF USER_CODE_COST = 1024      # likewise for each record with serializers or interceptors
DEF SERIALIZED_COST = 16       # likewise for each byte that a serializer returns
DEF TRACED_COST = 24576        # likewise for each record with a span
DEF LARGE = 4 << 20            # a thread copies values of this size or more; 100 MiB would block the loop for 60-200 ms
DEF STICKY_LEAST = 16 << 10    # bytes of keyless records after which the partition may change (as in Java)

HEADER_SIZE = HEADER
NO_ORDER = (-1, 0)             # sorts before the order of every batch in a queue
LARGE_RECORD = LARGE

cdef object _running_loop = asyncio._get_running_loop
cdef object _copy_context = contextvars.copy_context
cdef object _new_tuple = tuple.__new__    # a named tuple's own __new__ takes twice as long
cdef int _generation = 0       # changes in a forked child, so that it cannot use an inherited producer


def _forked():
    global _generation
    _generation += 1


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forked)


# ---------------------------------------------------------------------------------------------- varints, murmur2

cdef inline uint64_t zigzag(int64_t value) noexcept nogil:
    return (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)


cdef inline int varint_size(int64_t value) noexcept nogil:
    cdef uint64_t left = zigzag(value)
    cdef int size = 1
    while left >= 0x80:
        left >>= 7
        size += 1
    return size


cdef inline char* put_varint(char* at, int64_t value) noexcept nogil:
    cdef uint64_t left = zigzag(value)
    while left >= 0x80:
        at[0] = <char>((left & 0x7F) | 0x80)
        left >>= 7
        at += 1
    at[0] = <char>left
    return at + 1


cdef inline const char* get_varint(const char* at, int64_t* value) noexcept nogil:
    """Read a varint that put_varint wrote. The input is not checked."""
    cdef uint64_t result = 0
    cdef int shift = 0
    while at[0] & 0x80:
        result |= <uint64_t>(at[0] & 0x7F) << shift
        shift += 7
        at += 1
    result |= <uint64_t>at[0] << shift
    value[0] = <int64_t>(result >> 1) ^ -<int64_t>(result & 1)
    return at + 1


cdef inline char* put_bytes(char* at, const char* data, Py_ssize_t size) noexcept nogil:
    """Write a length (-1 for null) and the bytes. If `data` is NULL, leave room for the bytes."""
    at = put_varint(at, size)
    if size > 0:
        if data != NULL:
            memcpy(at, data, size)
        at += size
    return at


cdef uint32_t murmur2_of(const unsigned char* data, Py_ssize_t size) noexcept nogil:
    # org.apache.kafka.common.utils.Utils.murmur2: seed 0x9747b28c, little endian words.
    cdef uint32_t m = 0x5BD1E995
    cdef uint32_t h = 0x9747B28Cu ^ <uint32_t>size
    cdef uint32_t k
    cdef Py_ssize_t i = 0
    while size - i >= 4:
        k = (data[i] | (<uint32_t>data[i + 1] << 8) | (<uint32_t>data[i + 2] << 16) | (<uint32_t>data[i + 3] << 24))
        k *= m
        k ^= k >> 24
        k *= m
        h *= m
        h ^= k
        i += 4
    if size - i == 3:
        h ^= <uint32_t>data[i + 2] << 16
    if size - i >= 2:
        h ^= <uint32_t>data[i + 1] << 8
    if size - i >= 1:
        h ^= data[i]
        h *= m
    h ^= h >> 13
    h *= m
    h ^= h >> 15
    return h


def murmur2(key):
    """Return Java's murmur2 of `key` as a signed 32-bit integer. The partition is (hash & 0x7fffffff) % partitions."""
    cdef const unsigned char[::1] view = key
    cdef uint32_t h = murmur2_of(&view[0] if view.shape[0] else NULL, view.shape[0])
    return <int32_t>h


# ------------------------------------------------------------------------------------------------ BufferMemory

@cython.final
cdef class BufferMemory:
    """The memory for batches, counted as in Kafka's BufferPool. append_lock.py lets callers wait for it."""

    cdef readonly int64_t total
    cdef readonly int64_t available
    cdef public int waiters
    """The number of `send` calls that are waiting for memory. Until they are served, no other call gets memory."""

    def __init__(self, int64_t total):
        self.total = self.available = total
        self.waiters = 0

    cpdef bint take(self, int64_t size) noexcept:
        """Reserve `size` bytes. If fewer are available, reserve none and return False."""
        if size > self.available:
            return False
        self.available -= size
        return True

    def give(self, int64_t size):
        """Return bytes that `take` reserved."""
        self.available += size
        assert self.available <= self.total, "buffer memory returned twice"


# -------------------------------------------------------------------------------------------------- the records

DEF SPARE_BUFFERS = 256
DEF SMALLEST_SPARE = 16 * 1024
DEF LARGEST_SPARE = 256 * 1024

cdef char* spare_data[SPARE_BUFFERS]
cdef Py_ssize_t spare_capacity[SPARE_BUFFERS]
cdef int spares = 0
cdef Mutex of_spares           # guards the spare buffers, which all event loops in a process share


cdef char* allocate(Py_ssize_t* capacity) except NULL:
    """Allocate at least `capacity` bytes.

    The C allocator returns large blocks to the system and gets them back page by page; this took a tenth of the total
    time. Therefore, blocks that are no longer in use (RecordsBuffer.__dealloc__) are kept, up to 64 MiB (the default
    for buffer_memory).
    """
    global spares
    cdef int i
    cdef char* data = NULL
    lock(&of_spares)
    for i in range(spares - 1, -1, -1):
        if capacity[0] <= spare_capacity[i] <= 2 * capacity[0]:
            data = spare_data[i]
            capacity[0] = spare_capacity[i]
            spares -= 1
            spare_data[i] = spare_data[spares]
            spare_capacity[i] = spare_capacity[spares]
            break
    unlock(&of_spares)
    if data != NULL:
        return data
    data = <char*>malloc(max(capacity[0], 1))
    if data == NULL:
        raise MemoryError
    return data


cdef void keep_or_free(char* data, Py_ssize_t capacity) noexcept:
    global spares
    if SMALLEST_SPARE <= capacity <= LARGEST_SPARE:
        lock(&of_spares)
        if spares < SPARE_BUFFERS:
            spare_data[spares] = data
            spare_capacity[spares] = capacity
            spares += 1
            data = NULL
        unlock(&of_spares)
    free(data)


def spare_memory():
    """Return the number of bytes that the producers in this process together keep for later batches."""
    cdef int64_t total = 0
    cdef int i
    lock(&of_spares)
    for i in range(spares):
        total += spare_capacity[i]
    unlock(&of_spares)
    return total


@cython.final
cdef class RecordsBuffer:
    """The encoded records of one batch. The buffer grows while the batch is open. After that, it changes only if a
    large value is copied into its place (complete_records), before the batch is sent.

    Each view keeps the buffer alive, so another batch cannot overwrite bytes that a transport is still writing.
    """

    cdef char* data
    cdef Py_ssize_t capacity   # bytes that may be used
    cdef Py_ssize_t allocated
    cdef Py_ssize_t size
    cdef bint was_viewed

    def __cinit__(self, Py_ssize_t capacity):
        self.capacity = self.allocated = capacity
        self.data = allocate(&self.allocated)

    def __dealloc__(self):
        if self.data != NULL:
            keep_or_free(self.data, self.allocated)

    cdef int resize(self, Py_ssize_t capacity) except -1:
        assert not self.was_viewed and capacity >= self.size
        cdef Py_ssize_t allocated = capacity
        cdef char* data
        if not capacity <= self.allocated <= 2 * capacity:
            data = allocate(&allocated)
            memcpy(data, self.data, self.size)
            keep_or_free(self.data, self.allocated)
            self.data = data
            self.allocated = allocated
        self.capacity = capacity
        return 0

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 1, flags)
        self.was_viewed = True


cdef struct Record:
    const char* key
    Py_ssize_t key_size
    const char* value
    Py_ssize_t value_size
    int64_t timestamp
    Py_ssize_t headers_size    # bytes of the headers, including their count


class BatchState(Enum):
    OPEN = "open"              # accepts records
    CLOSED = "closed"          # waiting to be sent, for the first time or again
    IN_FLIGHT = "in flight"    # written to a connection, but not answered yet
    DONE = "done"              # the batch has its result, or its parts have replaced it


cdef object _OPEN = BatchState.OPEN
cdef object _CLOSED = BatchState.CLOSED
cdef object _DONE = BatchState.DONE


cdef list _NO_INDEXES = []     # shared by all batches, and never changed


cdef class Batch:
    """A batch of encoded records for one partition, and the deliveries that have callbacks.

    The base class of batch.ProducerBatch, with the states and everything else that individual records need.
    """

    cdef public PartitionQueue queue
    cdef readonly int record_count
    cdef public object state
    """The BatchState. freeze() closes the batch; mark_sent() and mark_returned() move it to the connection and back;
    complete(), fail() and split_into() end it."""
    cdef uint8_t ended             # a flag: the state is DONE; other threads read it in place of the state
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t last_timestamp
    """The timestamp of the record that try_append() added last."""
    cdef public int64_t reserved
    """Bytes of the buffer memory that this batch occupies until it is released."""
    cdef Mutex mutex               # guards `buffer` and `late_value`, which worker threads also use
    cdef RecordsBuffer buffer
    cdef Py_ssize_t limit
    cdef bytes late_value          # a large value that has yet to be copied to its place in the buffer
    cdef Py_ssize_t late_at
    cdef object loop
    cdef list waiters
    """The deliveries that have callbacks; None if there are none."""
    # the result, written once
    cdef readonly int64_t base_offset
    cdef readonly int64_t log_append_time
    cdef readonly int64_t log_start_offset
    cdef readonly object error
    cdef public dict record_errors
    """The errors of individual records, by index, where they differ from the batch's error."""
    cdef set retrieved
    """The indexes of the records whose own errors were retrieved; None before the first record error."""
    cdef readonly set ended_early
    """The indexes of records that ended before the batch; None before the first one."""
    cdef uint8_t has_ended_early   # a flag: `ended_early` is not None
    cdef readonly list withdrawn
    """The indexes, in ascending order, of records that are left out because they ended before the first attempt."""
    cdef readonly list left_out
    """The withdrawn indexes whose records have already been removed from the encoded records."""
    cdef readonly int unretrieved
    """The number of deliveries that were dropped before their result was retrieved."""
    cdef public bint is_due
    """True if the batch should be sent even while it is open: it has lingered (or linger_ms is 0), it was opened for a
    large record, a caller is waiting for it, or Accumulator.hurry_node was called for its node."""
    cdef readonly list parts
    """The parts of a batch that was split, as (first index, Batch) pairs in ascending order. Each delivery moves to
    one of them."""
    cdef public bint was_given_up_on_request
    """True if the user asked for the failure, for example by calling abort_transaction(). Such a failure is not
    reported as unretrieved."""

    def __init__(self, PartitionQueue queue, loop, Py_ssize_t capacity, Py_ssize_t limit):
        # `capacity` and `limit` count the bytes of records, excluding the header of the batch.
        self.queue = queue
        self.loop = loop
        self.buffer = RecordsBuffer(capacity)
        self.reserved = capacity
        self.limit = limit
        self.state = _OPEN
        self.withdrawn = self.left_out = _NO_INDEXES
        self.base_timestamp = -1
        self.max_timestamp = -1
        self.base_offset = self.log_append_time = self.log_start_offset = -1

    @property
    def size(self):
        """The uncompressed size of the batch in bytes, including its header."""
        return HEADER + self.buffer.size if self.buffer is not None else 0

    @property
    def records(self):
        """A view of the encoded records. The batch must be closed; a large value may still be missing (is_whole)."""
        assert self.state is not _OPEN
        return memoryview(self.buffer)

    def freeze(self):
        """Close the batch to further records. Return the number of reserved bytes that were not used."""
        cdef int64_t surplus
        assert self.state is _OPEN
        self.state = _CLOSED
        surplus = self.buffer.capacity - self.buffer.size
        if surplus < 64:
            return 0
        self.buffer.resize(self.buffer.size)
        self.reserved -= surplus
        return surplus

    @property
    def is_whole(self):
        """True if the encoded records are complete; False while a large value has yet to be copied."""
        return self.late_value is None

    def complete_records(self):
        """Copy the large value to its place. Copying takes a long time, so a worker thread does it, without the GIL."""
        cdef bytes value
        cdef RecordsBuffer buffer
        cdef Py_ssize_t at
        cdef const char* data
        cdef Py_ssize_t size
        lock(&self.mutex)
        value = self.late_value
        buffer = self.buffer
        at = self.late_at
        unlock(&self.mutex)
        if value is None or buffer is None:     # the batch has ended in the meantime
            return
        data = PyBytes_AS_STRING(value)
        size = PyBytes_GET_SIZE(value)
        assert at >= 0 and at + size <= buffer.size
        with nogil:
            memcpy(buffer.data + at, data, size)
        lock(&self.mutex)
        self.late_value = None     # `value` still refers to it
        unlock(&self.mutex)

    def take_reserved(self):
        """Return the number of bytes to give back once the batch has ended. Further calls return 0."""
        cdef int64_t reserved = self.reserved
        self.reserved = 0
        return reserved

    def try_append(self, value, key, timestamp_ms, headers):
        """Add a record to a batch that the user is building. Return False if the batch is full."""
        cdef Record record
        cdef Py_buffer key_view, value_view
        cdef int views = 0
        cdef Py_ssize_t most
        if type(headers) is list:
            headers = tuple(headers)
        try:
            views = read_record(&record, value, key, timestamp_ms, headers, &key_view, &value_view)
            most = most_bytes(&record)
            if self.state is not _OPEN or (self.record_count and not has_room(self, most, None)):
                return False
            if self.record_count == 0 and most > self.buffer.capacity:
                self.buffer.resize(most)   # a record larger than a batch gets a batch of its own
                self.reserved = most
            write_record(self, &record, headers)
            self.last_timestamp = record.timestamp
            return True
        finally:
            release_views(views, &key_view, &value_view)

    def delivery(self, int index=0, timestamp=None):
        """Return a new delivery for the record at `index`. By default, it has the timestamp of the batch's first
        record."""
        return new_delivery(self, index, self.base_timestamp if timestamp is None else timestamp)

    def another(self, Delivery delivery):
        """Return a second delivery for the same record, which is not affected if the first one is cancelled."""
        cdef Delivery second = new_delivery(self, delivery.index, delivery.timestamp)
        second.flags = SECOND
        return second

    def count_unretrieved(self, int count):
        """Count records whose deliveries were dropped before their results were retrieved."""
        add_to(&self.unretrieved, count)

    def mark_retrieved(self, int index):
        """Mark this record's error as retrieved."""
        if self.retrieved is not None:
            self.retrieved.add(index)

    @property
    def unretrieved_errors(self):
        """The errors of individual records that no caller has retrieved."""
        return [error for index, error in sorted((self.record_errors or {}).items()) if index not in (self.retrieved or ())]

    def complete(self, int64_t base_offset, int64_t log_append_time, int64_t log_start_offset):
        """End the batch without an error of its own. `base_offset` is the offset of its first record in the log; -1 if
        it is unknown, or if no record was sent."""
        assert self.state is not _DONE
        self.base_offset = base_offset
        self.log_append_time = log_append_time
        self.log_start_offset = log_start_offset
        resolve(self)

    def fail(self, error):
        """End the batch with an error: its records are not sent again."""
        assert self.state is not _DONE
        self.error = error
        resolve(self)

    def end_record(self, Delivery delivery, error, bint withdraw):
        """End one delivery with `error`. With `withdraw`, its record is left out when the batch is sent."""
        assert delivery.state == PENDING and delivery.batch is self and self.state is not _DONE
        note_early_end(self, [delivery.index], error)
        if withdraw:
            if self.withdrawn is _NO_INDEXES:
                self.withdrawn = []
            insort(self.withdrawn, delivery.index)
        set_flag(&delivery.state, ENDED)
        schedule_callbacks(delivery)

    def end_records(self, int first, int end, error, bint withdraw):
        """End the records from index `first` up to, but not including, `end` with `error`, except those that have
        already ended. Return how many this call ended. With `withdraw`, they are left out when the batch is sent."""
        cdef Delivery delivery
        cdef Callbacks callbacks
        cdef set before = self.ended_early or set()
        cdef list indexes = [index for index in range(first, end) if index not in before]
        assert self.state is not _DONE
        if not indexes:
            return 0
        note_early_end(self, indexes, error)
        if withdraw:
            self.withdrawn = sorted([*self.withdrawn, *indexes])
        callbacks = Callbacks.__new__(Callbacks)
        for delivery in self.waiters or ():
            if delivery.state == PENDING and first <= delivery.index < end:
                set_flag(&delivery.state, ENDED)
                callbacks.take(delivery)
        callbacks.schedule(self.loop)
        return len(indexes)

    def have_ended(self, int first, int end):
        """Return whether each record from index `first` up to `end` has its result."""
        return self.state is _DONE or (
            self.ended_early is not None and self.ended_early.issuperset(range(first, end)))

    def leave_out_withdrawn(self):
        """Encode the records again without the withdrawn ones. Allowed only before the first attempt."""
        cdef RecordsBuffer old = self.buffer
        cdef set withdrawn = set(self.withdrawn)
        assert self.state is not _OPEN
        self.buffer = RecordsBuffer(old.size)
        copy_records(self, old, [index not in withdrawn for index in original_indexes(self)])
        self.left_out = self.withdrawn.copy()

    def take_records(self, Batch parent, int first, int end, dict errors):
        """Fill this empty batch with the records of `parent` from index `first` up to, but not including, `end`.
        Records in `errors` are left out; they fail with those errors when the batch completes.

        The records do not get larger, since only their offset deltas change.
        """
        cdef list indexes = original_indexes(parent)
        assert self.state is _OPEN and self.record_count == 0 and parent.state is not _OPEN
        self.base_timestamp = parent.base_timestamp
        self.withdrawn = sorted([index - first for index in (*parent.withdrawn, *errors) if first <= index < end])
        self.left_out = self.withdrawn.copy()
        found = {**errors, **(parent.record_errors or {})}
        self.record_errors = {index - first: error for index, error in found.items() if first <= index < end} or None
        self.retrieved = {index - first for index in (parent.retrieved or set()).copy() if first <= index < end}
        early = {index - first for index in parent.ended_early or () if first <= index < end}
        if early:
            self.ended_early = early
            set_flag(&self.has_ended_early, True)
        copy_records(self, parent.buffer, [first <= index < end and index not in errors for index in indexes])

    def split_into(self, parts):
        """Move the records to other batches, given as [(first index, batch)]. Each delivery follows its record."""
        cdef Delivery delivery
        cdef list waiters = self.waiters
        cdef list kept = list(parts)
        assert self.state is not _DONE
        publish()
        self.parts = kept
        note_end(self)
        self.waiters = None
        self.buffer = None
        for delivery in waiters or ():
            while follow(delivery):
                pass
            let_wait(delivery)
        for _, part in self.parts:
            # Only the number of dropped deliveries is known, not which ones were dropped, so this number is an upper
            # limit for each part.
            add_to(&(<Batch>part).unretrieved,
                   min(self.unretrieved, (<Batch>part).record_count + <int>len((<Batch>part).withdrawn)))

    def original_index(self, int index):
        """Return the index that a record had before others were left out."""
        for left_out in self.left_out:
            if left_out <= index:
                index += 1
        return index

    def __del__(self):
        """Report the failures that no caller can retrieve any more."""
        if not self.unretrieved or self.parts is not None or self.was_given_up_on_request:
            return
        failures = self.queue.unretrieved
        if failures is None:
            return
        if self.error is not None:
            failures.add(self.queue.topic, self.error, self.unretrieved)
        elif self.record_errors:       # the other records are in the log
            for error in self.unretrieved_errors[: self.unretrieved]:
                failures.add(self.queue.topic, error, 1)


cdef int note_early_end(Batch batch, list indexes, error) except -1:
    if batch.record_errors is None:
        batch.record_errors = {}
    if batch.retrieved is None:
        batch.retrieved = set()
    if batch.ended_early is None:
        batch.ended_early = set()
    batch.record_errors.update(dict.fromkeys(indexes, error))
    batch.ended_early.update(indexes)
    set_flag(&batch.has_ended_early, True)
    return 0


cdef list original_indexes(Batch batch):
    """Return, for each record, the index that it had before others were left out."""
    cdef set left_out = set(batch.left_out)
    return [index for index in range(batch.record_count + <int>len(batch.left_out)) if index not in left_out]


cdef int copy_records(Batch batch, RecordsBuffer old, list kept) except -1:
    """Copy into the batch those records of `old` whose item in `kept` is true, and count them."""
    cdef RecordsBuffer new = batch.buffer
    cdef const char* at = old.data
    cdef const char* after
    cdef char* to = new.data
    cdef int64_t body, delta, number
    cdef int count = 0
    assert new.capacity >= old.size
    batch.max_timestamp = -1
    for is_kept in kept:
        at = get_varint(at, &body)
        after = at + body
        if is_kept:
            at = get_varint(at + 1, &delta)      # after the attributes
            at = get_varint(at, &number)
            body = 1 + varint_size(delta) + varint_size(count) + (after - at)
            # Offset deltas only get smaller, so the records need no more bytes than before.
            to = put_varint(to, body)
            to[0] = 0
            to = put_varint(to + 1, delta)
            to = put_varint(to, count)
            memcpy(to, at, after - at)
            to += after - at
            count += 1
            batch.max_timestamp = max(batch.max_timestamp, batch.base_timestamp + delta)
        at = after
    new.size = to - new.data
    batch.record_count = count
    return 0


cdef inline int note_end(Batch batch) except -1:
    """Let every thread see that the batch has its result or was replaced with its parts."""
    batch.state = _DONE
    set_flag(&batch.ended, True)
    return 0


cdef int resolve(Batch batch) except -1:
    cdef Delivery delivery
    cdef list waiters = batch.waiters
    cdef RecordsBuffer buffer = batch.buffer
    cdef bytes late_value = batch.late_value
    cdef Callbacks callbacks
    cdef int last = -1
    note_end(batch)
    lock(&batch.mutex)
    batch.buffer = None            # a transport may still have a view of it
    batch.late_value = None
    unlock(&batch.mutex)
    buffer = late_value = None
    batch.waiters = None
    if waiters is None:
        return 0
    # Deliveries complete in the order in which their records were appended, and they are nearly always awaited in
    # that order.
    for delivery in waiters:
        if delivery.index < last:
            waiters.sort(key=_index_of)
            break
        last = delivery.index
    callbacks = Callbacks.__new__(Callbacks)
    for delivery in waiters:
        if delivery.state == PENDING:
            callbacks.take(delivery)
    callbacks.schedule(batch.loop)
    return 0


def _index_of(Delivery delivery):
    return delivery.index


# ---------------------------------------------------------------------------------------------- RecordMetadata

@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class RecordMetadata:
    """The position of a record: `topic`, `partition`, `offset`, `timestamp`, `timestamp_type`, `log_start_offset`.

    `offset` is None if the broker did not return it (acks=0, or a duplicate that the broker no longer remembers).
    `timestamp` is in milliseconds; `timestamp_type` is 0 for the producer's time and 1 for the broker's append time.
    """

    cdef readonly str topic
    cdef readonly int partition
    cdef int64_t _offset
    cdef readonly int64_t timestamp
    cdef readonly int timestamp_type
    cdef readonly int64_t log_start_offset

    def __init__(self, str topic, int partition, offset, int64_t timestamp=-1, int timestamp_type=0,
                 int64_t log_start_offset=-1):
        self.topic = topic
        self.partition = partition
        self._offset = -1 if offset is None else offset
        self.timestamp = timestamp
        self.timestamp_type = timestamp_type
        self.log_start_offset = log_start_offset

    @property
    def offset(self):
        return self._offset if self._offset >= 0 else None

    @property
    def topic_partition(self):
        return TopicPartition(self.topic, self.partition)

    def _key(self):
        return (self.topic, self.partition, self.offset, self.timestamp, self.timestamp_type, self.log_start_offset)

    def __eq__(self, other):
        return isinstance(other, RecordMetadata) and self._key() == (<RecordMetadata>other)._key()

    def __hash__(self):
        return hash(self._key())

    def __reduce__(self):
        return RecordMetadata, self._key()

    def __repr__(self):
        return (f"RecordMetadata(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
                f"timestamp={self.timestamp}, timestamp_type={self.timestamp_type})")


# ------------------------------------------------------------------------------------------------------ Delivery

cdef enum:
    PENDING = 0        # the batch has the result, or will have it
    CANCELLED = 1      # cancelled by a caller; the record is still sent
    ENDED = 2          # ended before the batch; batch.record_errors has the result
    RETRIEVED = 4      # a flag: the result was retrieved
    SECOND = 8         # a flag: a second delivery, not the user's


@cython.final
@cython.no_gc
@cython.freelist(1024)
cdef class Delivery:
    """The future for one record: `await` it for the RecordMetadata, or use it wherever asyncio accepts a future.

    Cancelling a delivery, or a task that awaits it, does not stop the record from being sent. As with any
    asyncio.Future, the delivery is then cancelled for every task that awaits it; if there are several, await
    `asyncio.shield(delivery)`.

    A delivery reads its result from its batch on demand, so an acknowledgement doesn't create an object per record.

    Raises (from `await` and `result()`):
        DeliveryError: the record failed; `outcome` says whether it may be in the log.
    """

    cdef readonly Batch batch
    cdef int64_t timestamp
    cdef int index
    cdef uint8_t state
    cdef uint8_t flags
    cdef uint8_t is_blocking   # not bint: these four fields share a word, and a delivery takes 48 bytes instead of 64
    cdef Mutex mutex           # guards `batch` and `index`, which change together when the batch is split
    cdef object callbacks      # None, one (callback, context), or a list of them; once CANCELLED, the cancel message

    def __init__(self):
        raise TypeError("Producer.send() creates deliveries; they cannot be created directly")

    def __dealloc__(self):
        if self.batch is None:
            return
        while follow(self):
            pass
        if self.flags != RETRIEVED and self.state != CANCELLED:
            add_to(&self.batch.unretrieved, 1)

    # asyncio recognizes a future by this attribute
    @property
    def _asyncio_future_blocking(self):
        return self.is_blocking != 0

    @_asyncio_future_blocking.setter
    def _asyncio_future_blocking(self, bint value):
        self.is_blocking = value

    @property
    def _cancel_message(self):
        """The `msg` argument to cancel(): asyncio.gather reads it, and anyio recognizes its own cancellations by it."""
        return self.callbacks if self.state == CANCELLED else None

    @property
    def _loop(self):
        return self.batch.loop

    def get_loop(self):
        return self.batch.loop

    @property
    def topic_partition(self):
        """The TopicPartition that the record was appended to."""
        cdef int index
        cdef Batch batch = batch_of(self, &index)
        return TopicPartition(batch.queue.topic, batch.queue.partition)

    def done(self):
        return has_ended(self)

    def cancelled(self):
        return self.state == CANCELLED

    def cancel(self, msg=None):
        """Cancel the delivery for every task that awaits it. Return False if it already has a result. The record is
        still sent."""
        if has_ended(self):
            return False
        self.state = CANCELLED
        schedule_callbacks(self)
        self.callbacks = msg       # the field no longer contains callbacks
        return True

    def result(self):
        """Return the RecordMetadata. Raise the error of a failed record, or InvalidStateError if there is no result
        yet."""
        return result_of(self)

    def exception(self):
        """Return the error of a failed record, or None. Raise InvalidStateError if there is no result yet."""
        cdef int index
        cdef Batch batch = ended_batch(self, &index)
        return error_of(self, batch, index)

    def add_done_callback(self, callback, *, context=None):
        if context is None:
            context = _copy_context()
        if has_ended(self):
            self.batch.loop.call_soon(callback, self, context=context)
        else:
            add_callback(self, (callback, context))

    def remove_done_callback(self, callback):
        cdef list kept, all
        if self.callbacks is None or self.state == CANCELLED:
            return 0
        all = self.callbacks if type(self.callbacks) is list else [self.callbacks]
        kept = [entry for entry in all if entry[0] != callback]
        self.callbacks = kept      # if the list is empty, the delivery is still one of the batch's waiters
        return len(all) - len(kept)

    def _make_cancelled_error(self):
        return CancelledError() if self._cancel_message is None else CancelledError(self._cancel_message)

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        if not has_ended(self):
            self.is_blocking = True
            return self
        raise StopIteration(self.result())

    def __repr__(self):
        cdef int index
        cdef Batch batch = batch_of(self, &index)
        where = f"{batch.queue.topic}-{batch.queue.partition}"
        what = "cancelled" if self.state == CANCELLED else "done" if has_ended(self) else "pending"
        return f"<Delivery {where} {what}>"


cdef inline Batch ended_batch(Delivery self, int* index):
    """Like `batch_of`, but raise an error if the delivery has no result or is cancelled."""
    if self.state == CANCELLED:
        raise self._make_cancelled_error()
    if not has_ended(self):
        raise InvalidStateError("the record is not acknowledged yet")
    return batch_of(self, index)


cdef object result_of(Delivery self):
    cdef object error
    cdef int index
    cdef Batch batch = ended_batch(self, &index)
    error = error_of(self, batch, index)
    if error is not None:
        raise error
    return metadata_of(self, batch, index)


cdef int send_to_delivery(PyObject* itself, PyObject* value, PyObject** result) except -1:
    """Implement the am_send slot, which `await` calls instead of __next__, to avoid a StopIteration for each result."""
    cdef Delivery self = <Delivery>itself
    cdef object answer
    result[0] = NULL
    if not has_ended(self):
        self.is_blocking = True
        answer = self
    else:
        answer = result_of(self)
    Py_INCREF(answer)
    result[0] = <PyObject*>answer
    return 1 if answer is self else 0      # PYGEN_NEXT, PYGEN_RETURN


aioproducer_set_am_send(<PyObject*>Delivery, send_to_delivery)


cdef inline Delivery new_delivery(Batch batch, int index, int64_t timestamp):
    cdef Delivery delivery = Delivery.__new__(Delivery)
    delivery.batch = batch
    delivery.index = index
    delivery.timestamp = timestamp
    return delivery


cdef inline int let_wait(Delivery delivery) except -1:
    """Add a delivery to the waiters of its batch. When the batch ends, it schedules the callbacks of its waiters."""
    if delivery.batch.waiters is None:
        delivery.batch.waiters = []
    delivery.batch.waiters.append(delivery)
    return 0


cdef inline int add_callback(Delivery delivery, tuple entry) except -1:
    """Add (callback, context) to a delivery that has no result yet."""
    if delivery.callbacks is None:
        delivery.callbacks = entry
        let_wait(delivery)
    elif type(delivery.callbacks) is tuple:
        delivery.callbacks = [delivery.callbacks, entry]
    else:
        (<list>delivery.callbacks).append(entry)
    return 0


cdef inline bint has_ended(Delivery delivery) except -1:
    cdef bint ended, may_have_ended_early, is_split
    while True:
        lock(&delivery.mutex)
        # Read the state first: a batch that is split gets its parts before it is DONE.
        ended = flag_is_set(&delivery.state) or flag_is_set(&delivery.batch.ended)
        is_split = delivery.batch.parts is not None
        may_have_ended_early = flag_is_set(&delivery.batch.has_ended_early)
        unlock(&delivery.mutex)
        if not is_split:
            return ended or (may_have_ended_early and ended_early(delivery))
        follow(delivery)


cdef bint ended_early(Delivery delivery) except -1:
    """Return whether the record ended before its batch, possibly before the delivery was created."""
    cdef int index
    cdef Batch batch = batch_of(delivery, &index)
    return batch.ended_early is not None and index in batch.ended_early


cdef bint follow(Delivery delivery) except -1:
    """If the batch was split, move the delivery to the part with its record. Return whether the batch was split."""
    cdef Batch left = None, taken = None
    cdef int index, first = 0
    lock(&delivery.mutex)
    left = delivery.batch
    index = delivery.index
    unlock(&delivery.mutex)
    if left.parts is None:
        return False
    for first, part in reversed(left.parts):
        if first <= index:
            break
    taken = part
    lock(&delivery.mutex)
    if delivery.batch is left:     # no other thread has moved it in the meantime
        delivery.batch = taken
        delivery.index = index - first
    unlock(&delivery.mutex)
    return True


cdef inline Batch batch_of(Delivery delivery, int* index):
    """Return the batch that now contains the delivery's record, and set `index` to the record's index there."""
    cdef Batch batch = None
    while True:
        lock(&delivery.mutex)
        batch = delivery.batch
        index[0] = delivery.index
        unlock(&delivery.mutex)
        if batch.parts is None:
            return batch
        batch = None
        follow(delivery)


cdef inline object error_of(Delivery delivery, Batch batch, int index):
    """Return a copy of the record's error, or None. Raising the error itself would attach a traceback to it. The
    traceback would refer to the awaiting task's frame, the frame to the delivery, and the delivery, through its batch,
    to the error: a cycle that the garbage collector cannot see."""
    if batch.record_errors is None and batch.error is None:
        delivery.flags = RETRIEVED
        return None
    error = retrieve(delivery, batch, index)
    return None if error is None else copy(error)


cdef object retrieve(Delivery delivery, Batch batch, int index):
    """Mark the result as retrieved. Return the record's error, or None."""
    cdef bint is_second = delivery.flags == SECOND
    delivery.flags = RETRIEVED
    if batch.record_errors is not None:
        error = batch.record_errors.get(index)
        if error is not None:
            if not is_second:
                batch.mark_retrieved(index)
            return error
    return batch.error


cdef inline RecordMetadata metadata_of(Delivery delivery, Batch batch, int index):
    cdef RecordMetadata metadata = RecordMetadata.__new__(RecordMetadata)
    metadata.topic = batch.queue.topic
    metadata.partition = batch.queue.partition
    metadata._offset = batch.base_offset + index if batch.base_offset >= 0 else -1
    if batch.withdrawn and metadata._offset >= 0:
        metadata._offset -= bisect_left(batch.withdrawn, index)
    metadata.timestamp_type = batch.log_append_time >= 0
    metadata.timestamp = batch.log_append_time if batch.log_append_time >= 0 else delivery.timestamp
    metadata.log_start_offset = batch.log_start_offset
    return metadata


include "_callbacks.pxi"
include "_gathering.pxi"


# ----------------------------------------------------------------------------------------- queues and topics

cdef class PartitionQueue:
    """The batches for one partition that are not in flight, oldest first; the last one may be open.

    Sender writes `in_flight`, Numbering writes `sequence`, and LossWatch writes `acknowledged_end` and
    `acknowledged_order`. The accumulator owns the queue and writes all other fields that change, including `tail`,
    which the code in this file only reads. An idle queue is kept small, since a producer keeps the queue of each
    partition that it has ever written to.
    """

    cdef readonly str topic
    cdef readonly int partition
    cdef public object batches
    """A deque of ProducerBatch, or a tuple if there is at most one, because a deque occupies 600 bytes."""
    cdef public Batch tail
    """The open batch at the end of `batches`, or None."""
    cdef public tuple in_flight
    """Batches that were written but not answered, in the order in which they were written."""
    cdef public double retry_at
    """The loop time before which nothing is sent after an error; 0 if there was no error."""
    cdef public object sequence
    """The idempotence.PartitionSequence; None until it is needed."""
    cdef public int size_hint
    """The number of bytes that the next batch initially reserves: the size of the last batch, or of a full batch if the
    last one was full."""
    cdef public int node_id
    """The leader to which the accumulator assigned this queue."""
    cdef public int64_t acknowledged_end
    """The offset after the last acknowledged record; -1 if nothing has been acknowledged."""
    cdef public tuple acknowledged_order
    """The order of the last acknowledged batch; NO_ORDER if nothing has been acknowledged."""
    cdef readonly object unretrieved
    """The producer's unretrieved.Unretrieved, to which batches report; None for a batch that is not in a queue yet."""

    def __init__(self, str topic, int partition, unretrieved=None):
        self.topic = topic
        self.partition = partition
        self.unretrieved = unretrieved
        self.batches = ()
        self.in_flight = ()
        self.size_hint = 1024
        self.node_id = -1
        self.acknowledged_end = -1
        self.acknowledged_order = NO_ORDER

    def __repr__(self):
        return f"<PartitionQueue {self.topic}-{self.partition}: {len(self.batches)} batches>"


cdef class Topic:
    """The part of a topic's state that the record path needs."""

    cdef readonly str name
    cdef readonly list queues
    """The PartitionQueue of each partition, by number."""
    cdef object next_partition
    """f(topic) -> the next sticky partition (KIP-794)."""
    cdef public int sticky_partition
    cdef public int64_t sticky_bytes

    def __init__(self, str name, next_partition):
        self.name = name
        self.next_partition = next_partition
        self.queues = []
        self.sticky_partition = -1


# -------------------------------------------------------------------------------------------------- RecordPath

@cython.final
cdef class _YieldOnce:
    """A single-use awaitable that lets the other tasks in the loop run."""

    cdef bint taken

    def __await__(self):
        return self

    def __next__(self):
        if self.taken:
            raise StopIteration
        self.taken = True
        return None


@cython.final
cdef class Gate:
    """Controls whether records may be appended. With transactions, transactions/state.py keeps the gate open only while
    a transaction is open."""

    cdef public bint is_open

    def __init__(self):
        self.is_open = True


include "_user_code.pxi"


cdef class RecordPath:
    """The base of `Producer`: the part of `send`, `send_and_wait` and `try_send` that does not have to wait."""

    cdef dict topics
    cdef object loop
    cdef object accumulator
    cdef object send_alone         # Sender.send_alone, or None
    cdef BufferMemory memory
    cdef readonly Gate _gate
    cdef Py_ssize_t batch_size
    cdef Py_ssize_t sticky_least
    cdef Py_ssize_t max_record_size
    cdef object is_loop_running
    cdef unsigned long thread
    cdef int generation
    cdef int64_t burst
    cdef bint is_running
    cdef bint was_closed
    cdef public object _tracer     # see observe/tracing.py; None if there is no tracer
    cdef bint is_compiled          # send() may append at once: the partitioner is murmur2, and no transaction is shared
    cdef bint runs_user_code       # the user has serializers or interceptors
    cdef UserSerializer of_value
    cdef UserSerializer of_key
    cdef object interceptors       # records.interceptors.Interceptors, or None
    cdef list on_send              # their methods, or None
    cdef bint want_results         # at least one interceptor has an on_acknowledgement method
    cdef object metadata

    def __cinit__(self, *args, **settings):
        self._gate = Gate()

    def _bind(self, loop, accumulator, BufferMemory memory, Py_ssize_t batch_size, Py_ssize_t max_request_size,
              bint is_compiled, send_alone=None):
        """Allow `send` to append from now on. Called by start()."""
        self.send_alone = send_alone
        self.topics = accumulator.topics
        self.loop = loop
        self.accumulator = accumulator
        self.memory = memory
        self.batch_size = batch_size
        self.sticky_least = min(batch_size, STICKY_LEAST)
        self.max_record_size = min(max_request_size, memory.total)
        self.is_loop_running = loop.is_running
        self.thread = PyThread_get_thread_ident()
        self.generation = _generation
        self.is_compiled = is_compiled
        self.is_running = True

    def _run_user_code(self, UserSerializer of_value, UserSerializer of_key, interceptors, metadata):
        """Set the serializers and the interceptors; each may be None. `metadata` provides the cluster id. Called by
        start()."""
        self.of_value = of_value
        self.of_key = of_key
        self.interceptors = interceptors
        self.on_send = None if interceptors is None else interceptors.methods
        self.want_results = interceptors is not None and interceptors.want_results
        self.metadata = metadata
        self.runs_user_code = of_value is not None or of_key is not None or interceptors is not None

    def _unbind(self):
        """Make `send` raise ProducerClosed from now on. Called when closing begins."""
        self.is_running = False
        self.was_closed = True

    def _check_usable(self):
        """Raise unless the producer is running, in this loop and this process."""
        if self.was_closed:
            raise ProducerClosed("the producer is closed; create a new one")
        if self.loop is None:
            raise ProducerNotStartedError(
                "the producer is not started; use `async with Producer(...)` or await producer.start()")
        self._check_place()

    def _check_may_append(self):
        """Raise unless a record may be appended now. Producer also checks for transactions."""
        self._check_usable()

    def _check_place(self):
        """Raise an error unless this is the process and the loop in which start() was called."""
        if self.loop is None:
            return
        if self.generation != _generation:
            raise ForkedError("the process was forked after start(); create a producer in the child process")
        if _running_loop() is not self.loop:
            raise WrongLoopError(
                f"the producer was started in {self.loop!r} but is used from {_running_loop()!r}; "
                "create one producer for each event loop")

    async def send(self, topic, value=None, key=None, partition=None, timestamp_ms=None, headers=None, *,
                   timeout=None, key_serializer=None, value_serializer=None):
        """Put a record into the buffer and return its delivery. Waits for metadata and for room in the buffer.

        Args:
            topic: the name of the topic, str.
            value, key: bytes, bytearray, memoryview or None, or what the serializers accept.
            partition: a number, or None for the partitioner's choice.
            timestamp_ms: milliseconds since 1970; now if None.
            headers: a list of (str, bytes or None).
            timeout: seconds for this record, including the wait for room; None for delivery_timeout_ms.
            key_serializer, value_serializer: the serializers for this record; None for the producer's.

        Returns:
            The Delivery, a future whose result is the RecordMetadata.

        Raises:
            InvalidRecordError, InvalidTopicError, RecordTooLargeError, SerializationError: the record is invalid.
            MetadataTimeoutError, UnknownPartitionError, BufferTimeoutError: the wait exceeded max_block_ms.
            TopicAuthorizationError: the cluster does not allow this client to write.
            ProducerNotStartedError, ProducerClosed, WrongLoopError, ForkedError: the producer is not started or is
                closed, or it belongs to another event loop, thread or process.

        If send() raises, the record is not sent.

        If send() is cancelled while it waits, the record is not sent. A record that is already in the buffer is
        sent, even if its delivery, or a task that awaits it, is cancelled.
        """
        # Not run: call_instead, at the end of the file, replaces it with a plain call.
        return await new_call(self, False, topic, value, key, partition, timestamp_ms, headers, timeout, key_serializer,
                              value_serializer)

    async def send_and_wait(self, topic, value=None, key=None, partition=None, timestamp_ms=None, headers=None, *,
                            timeout=None, key_serializer=None, value_serializer=None):
        """Send a record and wait for its acknowledgement. The record's batch does not linger.

        Takes the same arguments as `send`.

        Raises:
            DeliveryError: the record failed; `outcome` says whether it may be in the log.
            Others: see `send`.

        If the call is cancelled once the record is in the buffer, only the wait ends; the record is still sent.
        """
        return await new_call(self, True, topic, value, key, partition, timestamp_ms, headers, timeout, key_serializer,
                              value_serializer)

    def try_send(self, topic, value=None, key=None, partition=None, timestamp_ms=None, headers=None, *, timeout=None,
                 key_serializer=None, value_serializer=None):
        """Put a record into the buffer and return its delivery, without waiting.

        Takes the same arguments as `send`.

        Raises:
            BufferFullError: the buffer is full, or the topic's metadata is not known yet (it has been requested).
            Others: see `send`.
        """
        if self._tracer is not None:
            span = self._tracer.begin(topic, value, key, headers, 1)
            if type(span) is list:     # the call is not recorded; these headers say so
                headers = span
            elif span is not None:
                sent = self._send_traced(
                    span, topic, value, key, partition, timestamp_ms, timeout, key_serializer, value_serializer)
                return sent if type(sent) is Delivery else self._try_send_traced_slowly(span, sent, timeout)
        sent = send_now(
            self, topic, value, key, partition, timestamp_ms, headers, timeout, key_serializer, value_serializer)
        return sent if type(sent) is Delivery else self._try_send_slowly(sent, timeout)

    def _send_traced(self, span, topic, value, key, partition, timestamp_ms, timeout, key_serializer,
                     value_serializer):
        """Send a record with a tracing span, which ends when the record has its result. Return what
        `send_now` returns."""
        try:
            sent = send_now(
                self, topic, value, key, partition, timestamp_ms, span.headers, timeout, key_serializer,
                value_serializer)
        except BaseException as error:
            span.fail(error)
            raise
        if type(sent) is Delivery:
            self.burst += TRACED_COST
            span.watch(sent, timeout is None)
        return sent

    async def _send_after_a_wait(self, span, pending, timeout, bint waits):
        """Send a record that could not be appended immediately. Return its Delivery or, if `waits`, its result."""
        cdef Delivery delivery
        try:
            delivery = await self._send_slowly(pending, timeout)
        except BaseException as error:
            if span is not None:
                span.fail(error)
            raise
        if span is not None:
            span.watch(delivery, timeout is None)
        if waits:
            hurry(self, delivery)
            return await delivery
        await self._give_way()
        return delivery

    def _try_send_traced_slowly(self, span, pending, timeout):
        try:
            delivery = self._try_send_slowly(pending, timeout)
        except BaseException as error:
            span.fail(error)
            raise
        span.watch(delivery, timeout is None)
        return delivery

    async def _give_way(self):
        """Let the other tasks run if many records were appended in this turn of the loop."""
        if self.burst >= YIELD_AFTER:
            self.burst = 0
            await _YieldOnce.__new__(_YieldOnce)

    def _count_rejected(self, topic, error):
        """Called when a record is rejected with an error. Producer overrides this to count the record."""

    def _serialization(self, UserSerializer of_value, UserSerializer of_key, str topic, value, key, headers):
        """Return a new Serialization for a record that could not be appended immediately."""
        return new_serialization(of_value, of_key, topic, value, key, headers, self.metadata)

    def _serializer_for(self, topic, serializer, field):
        """Return the UserSerializer for a serializer that was passed to `send`. Producer overrides this."""

    def _append(self, Topic topic, value, key, int partition, timestamp_ms, headers, bint is_first_waiter):
        """Append a record to a partition of a known topic. Return None if there is no memory for it now.

        `is_first_waiter`: whether the caller is the first one waiting for memory, so it need not wait for the others.
        """
        return append(self, topic, value, key, partition, timestamp_ms, headers, is_first_waiter)

    def _append_rows(self, Topic topic, Rows rows, list refusals, bint is_first_waiter):
        """Append rows from send_many. Return ALL_APPENDED, OTHERS_TURN (call again later) or NO_ROOM.

        `refusals`, unless it is None, contains an item for each partition: None if this producer may write to it,
        otherwise the error for its rows.
        `is_first_waiter`: whether the caller is the first one waiting for memory, so it need not wait for the others.
        """
        return append_rows(self, topic, rows, refusals, is_first_waiter)


cdef inline object send_now(RecordPath self, topic, value, key, partition, timestamp_ms, headers, timeout,
                            key_serializer, value_serializer):
    """Append a record and return its Delivery if that can be done without waiting; otherwise return a PendingRecord."""
    cdef Delivery delivery
    cdef UserSerializer of_value, of_key
    cdef bint is_compiled = self.is_compiled and timeout is None
    if not self.runs_user_code and key_serializer is None and value_serializer is None:
        if is_compiled:
            delivery = append_known(self, topic, value, key, partition, timestamp_ms, headers)
            if delivery is not None:
                return delivery
        return PendingRecord(ProducerRecord(topic, value, key, partition, timestamp_ms, headers))
    of_value = self.of_value if value_serializer is None else self._serializer_for(topic, value_serializer, "value")
    of_key = self.of_key if key_serializer is None else self._serializer_for(topic, key_serializer, "key")
    if is_compiled:
        return append_with_user_code(
            self, topic, value, key, partition, timestamp_ms, headers, of_value, of_key)
    return PendingRecord(ProducerRecord(topic, value, key, partition, timestamp_ms, headers), of_value, of_key)


cdef Delivery append_known(RecordPath self, topic, value, key, partition, timestamp_ms, headers):
    """Append a record if that can be done without waiting; otherwise return None."""
    cdef Delivery delivery
    cdef bint is_rejected = True
    try:                            # `except` would save the exception state for each record; `finally` does not
        check_may_append(self)
        delivery = append_to_known(self, topic, value, key, partition, timestamp_ms, headers)
        is_rejected = False
        return delivery
    finally:
        if is_rejected:
            self._count_rejected(topic, sys.exc_info()[1])


cdef object append_with_user_code(RecordPath self, topic, value, key, partition, timestamp_ms, headers,
                                  UserSerializer of_value, UserSerializer of_key):
    """Run the user's code for a record and append it. Return its Delivery, or a PendingRecord if it has to wait."""
    cdef Serialization serialization = None
    cdef Delivery delivery = None
    cdef bint is_rejected = True
    given_topic = topic
    record = None
    try:
        check_may_append(self)
        if self.interceptors is not None:
            record = call_interceptors(
                self.interceptors, self.on_send,
                _new_tuple(ProducerRecord, (topic, value, key, partition, timestamp_ms, headers, None)))
            topic, value, key, partition, timestamp_ms, headers, _ = <tuple>record
        if of_value is None and of_key is None:
            delivery = append_after_user_code(self, topic, value, key, partition, timestamp_ms, headers)
        elif find(self, topic, partition) is not None:    # nothing is serialized while the topic is unknown
            if of_key is None and of_value.takes == VALUE_ONLY:
                # The usual case, which needs a Serialization only if the record has to wait.
                result = None if value is None else call_serializer(None, of_value, topic, value)
                if type(result) is not Waiting:
                    delivery = append_after_user_code(self, topic, result, key, partition, timestamp_ms, headers)
                    self.burst += SERIALIZED_COST * size_of(result)
                if delivery is None:
                    serialization = new_serialization(of_value, of_key, topic, value, key, headers, self.metadata)
                    serialization.accept(result)
            else:
                serialization = new_serialization(of_value, of_key, topic, value, key, headers, self.metadata)
                if run_serializers(serialization):
                    delivery = append_after_user_code(
                        self, topic, serialization.value, serialization.key, partition, timestamp_ms,
                        headers_of(serialization))
                    self.burst += SERIALIZED_COST * (size_of(serialization.value) + size_of(serialization.key))
        if delivery is not None:
            self.burst += USER_CODE_COST
            if self.want_results:
                self.interceptors.watch(delivery, record)
            is_rejected = False
            return delivery
        pending = PendingRecord(
            record or ProducerRecord(topic, value, key, partition, timestamp_ms, headers), of_value, of_key)
        pending.topic = given_topic
        pending.is_intercepted = True
        pending.serialization = serialization
        is_rejected = False
        return pending
    finally:
        if is_rejected:
            error = sys.exc_info()[1]
            self._count_rejected(given_topic, error)
            if record is not None:
                self.interceptors.on_acknowledgement(error, record)


cdef inline Delivery append_after_user_code(RecordPath self, topic_name, value, key, partition, timestamp_ms, headers):
    """Append a record after the user's code has run. If that code waited in a greenlet, the producer may be closed by
    now."""
    if not may_append_here(self):
        self._check_may_append()
    return append_to_known(self, topic_name, value, key, partition, timestamp_ms, headers)


cdef inline Py_ssize_t size_of(data) noexcept:
    return PyBytes_GET_SIZE(data) if PyBytes_CheckExact(data) else 0


cdef inline int check_may_append(RecordPath self) except -1:
    # In the thread that called start(), the producer's loop is the running loop if it is running at all, so these
    # checks suffice. On Python 3.11, asyncio needs a system call to look up the running loop.
    if not may_append_here(self) or self.thread != PyThread_get_thread_ident() or not self.is_loop_running():
        self._check_may_append()
    return 0


cdef inline bint may_append_here(RecordPath self) noexcept:
    """Return whether records may be appended in this process."""
    return self.is_running and self._gate.is_open and self.generation == _generation


cdef inline Topic find(RecordPath self, topic_name, partition):
    """Return the topic if it is known and has this partition. Return None otherwise, or if the arguments must be
    checked first."""
    cdef PyObject* found
    if type(topic_name) is not str:
        return None
    found = PyDict_GetItemWithError(self.topics, topic_name)
    if found == NULL:
        return None
    if partition is not None and (
            type(partition) is not int or not 0 <= partition < PyList_GET_SIZE((<Topic>found).queues)):
        return None
    return <Topic>found


cdef inline Delivery append_to_known(RecordPath self, topic_name, value, key, partition, timestamp_ms, headers):
    """Append a record to a topic if it is known; otherwise return None."""
    cdef Topic topic = find(self, topic_name, partition)
    if topic is None:
        return None
    return append(self, topic, value, key, -1 if partition is None else partition, timestamp_ms, headers, False)


cdef Delivery append(RecordPath self, Topic topic, value, key, int number, timestamp_ms, headers, bint is_first_waiter):
    """Check the arguments of a record, and append it."""
    cdef Record record
    cdef bytes late_value = None
    cdef Py_buffer key_view, value_view
    cdef int views = 0
    if type(headers) is list:
        headers = tuple(headers)       # a list could change between the check and the write
    try:
        views = read_record(&record, value, key, timestamp_ms, headers, &key_view, &value_view)
        if record.value_size >= LARGE and PyBytes_CheckExact(value):    # bytes cannot change later
            record.value = NULL
            late_value = value
        return append_record(self, topic, number, &record, headers, late_value, is_first_waiter)
    finally:
        release_views(views, &key_view, &value_view)


cdef Delivery append_record(RecordPath self, Topic topic, int number, Record* record, headers, bytes late_value,
                            bint is_first_waiter):
    """Append a record. `late_value` is a value that a thread will copy (`record.value` is then NULL), or None."""
    cdef PartitionQueue queue
    cdef Batch batch
    cdef bint is_sticky = number < 0 and record.key_size < 0
    cdef Py_ssize_t most = most_bytes(record)
    if most + HEADER > self.max_record_size:
        raise_too_large(self, most + HEADER)

    if number < 0:
        if record.key_size >= 0:
            number = <int>((murmur2_of(<const unsigned char*>record.key, record.key_size) & 0x7FFFFFFF)
                           % <uint32_t>PyList_GET_SIZE(topic.queues))
        else:
            number = sticky(self, topic, most)
    if number >= PyList_GET_SIZE(topic.queues):    # the topic was re-created with fewer partitions
        raise UnknownPartitionError(
            f"topic {topic.name} has {PyList_GET_SIZE(topic.queues)} partitions now; partition {number} does not exist",
            topic=topic.name, partition=number, partitions=PyList_GET_SIZE(topic.queues))
    queue = <PartitionQueue>PyList_GET_ITEM(topic.queues, number)

    if self.memory.waiters and not is_first_waiter:
        return None                # callers that are waiting for memory come first
    batch = queue.tail
    while batch is None or (most >= LARGE and batch.record_count) or not has_room(batch, most, self.memory):
        if self.accumulator.open_batch(queue, most) is None:
            return None
        self.burst += BATCH_COST
        if self.accumulator.compressor.turn_is_full:
            self.burst = YIELD_AFTER
        batch = queue.tail         # check again: the garbage collector or a signal handler may have appended to it
    write_record(batch, record, headers)
    if late_value is not None:     # the batch contains only this record
        batch.late_value = late_value
        batch.late_at = batch.buffer.size - record.headers_size - record.value_size
    if is_sticky:
        topic.sticky_bytes += most
    self.burst += RECORD_COST + most
    return new_delivery(batch, batch.record_count - 1, record.timestamp)


cdef int read_record(Record* record, value, key, timestamp_ms, headers, Py_buffer* key_view,
                     Py_buffer* value_view) except -1:
    """Check the user's arguments. Return flags for the views that must be released (1: value, 2: key)."""
    cdef int views = 0
    record.timestamp = now_ms() if timestamp_ms is None else checked_timestamp(timestamp_ms)
    record.headers_size = 1 if headers is None else size_of_headers(headers)
    if PyBytes_CheckExact(value):
        record.value = PyBytes_AS_STRING(value)
        record.value_size = PyBytes_GET_SIZE(value)
    elif value is None:
        record.value_size = -1
    else:
        get_view(value, value_view, "value")
        views = 1
        record.value = <const char*>value_view.buf
        record.value_size = value_view.len
    if key is None:
        record.key_size = -1
    elif PyBytes_CheckExact(key):
        record.key = PyBytes_AS_STRING(key)
        record.key_size = PyBytes_GET_SIZE(key)
    else:
        try:
            get_view(key, key_view, "key")
        except BaseException:
            release_views(views, key_view, value_view)
            raise
        views |= 2
        record.key = <const char*>key_view.buf
        record.key_size = key_view.len
    return views


cdef inline void release_views(int views, Py_buffer* key_view, Py_buffer* value_view) noexcept:
    if views & 1:
        PyBuffer_Release(value_view)
    if views & 2:
        PyBuffer_Release(key_view)


cdef inline Py_ssize_t most_bytes(Record* record) noexcept nogil:
    """Return an upper bound on the encoded size: length, timestamp delta (up to 10 bytes), offset delta, two sizes,
    attributes, the bytes."""
    return (6 * LONGEST_VARINT + 1 + record.headers_size + (record.key_size if record.key_size > 0 else 0)
            + (record.value_size if record.value_size > 0 else 0))


cdef inline char* begin_record(Batch batch, Record* record) noexcept:
    """Write a record up to its headers. Return the position of the headers."""
    cdef Py_ssize_t body
    cdef int64_t delta
    cdef char* at
    if batch.record_count == 0:
        batch.base_timestamp = record.timestamp
    if record.timestamp > batch.max_timestamp:
        batch.max_timestamp = record.timestamp
    delta = record.timestamp - batch.base_timestamp
    body = (1 + varint_size(delta) + varint_size(batch.record_count)
            + varint_size(record.key_size) + (record.key_size if record.key_size > 0 else 0)
            + varint_size(record.value_size) + (record.value_size if record.value_size > 0 else 0)
            + record.headers_size)
    # The caller has made room for most_bytes() after `size`; `body` and its length never need more.
    at = put_varint(batch.buffer.data + batch.buffer.size, body)
    at[0] = 0                      # attributes, unused
    at = put_varint(at + 1, delta)
    at = put_varint(at, batch.record_count)
    at = put_bytes(at, record.key, record.key_size)
    return put_bytes(at, record.value, record.value_size)


cdef inline int end_record(Batch batch, char* at) except -1:
    batch.buffer.size = at - batch.buffer.data
    assert batch.buffer.size <= batch.buffer.capacity
    batch.record_count += 1
    aioproducer_prefetch(at)
    return 0


cdef int write_record(Batch batch, Record* record, headers) except -1:
    cdef char* at = begin_record(batch, record)
    if headers is None:
        at[0] = 0
        at += 1
    else:
        at = put_headers(at, headers)
    return end_record(batch, at)


cdef bint has_room(Batch batch, Py_ssize_t most, BufferMemory memory) except -1:
    """Return whether `most` bytes fit into the open batch. If needed, grow the batch with bytes from `memory` (None: no
    limit)."""
    cdef RecordsBuffer buffer = batch.buffer
    cdef Py_ssize_t needed = buffer.size + most
    cdef Py_ssize_t before = buffer.capacity
    cdef Py_ssize_t capacity
    if needed <= buffer.capacity:
        return True
    if needed > batch.limit:
        return False
    capacity = min(batch.limit, max(needed, 2 * buffer.capacity))
    if memory is not None and not memory.take(capacity - before):
        capacity = needed          # memory is scarce: reserve only what this record needs
        if not memory.take(capacity - before):
            return False
    try:
        buffer.resize(capacity)
    except MemoryError:
        if memory is not None:
            memory.give(capacity - buffer.capacity)
        raise
    batch.reserved += capacity - before
    return True


cdef inline int sticky(RecordPath self, Topic topic, Py_ssize_t most) except -1:
    """Return the partition for records without a key: the same one until it has received `batch_size` bytes (KIP-794).

    The switch to the next partition waits until the batch is full or the partition has received twice as many bytes, so
    as not to leave a partial batch behind. If the last batch was sent before it was full (linger, flush), 16 KiB is
    enough, because no partial batch would be left behind. The caller counts the bytes once the record is in its batch.
    """
    cdef Batch tail
    if topic.sticky_partition >= 0:
        if topic.sticky_bytes < self.sticky_least:
            return topic.sticky_partition
        tail = (<PartitionQueue>PyList_GET_ITEM(topic.queues, topic.sticky_partition)).tail
        if tail is not None and (topic.sticky_bytes < self.batch_size
                                 or (topic.sticky_bytes < 2 * self.batch_size
                                     and tail.buffer.size + most <= tail.limit)):
            return topic.sticky_partition
    topic.sticky_partition = topic.next_partition(topic)
    topic.sticky_bytes = 0
    return topic.sticky_partition


def whole_number(value):
    """Return `value` as an int if operator.index accepts it (IntEnum, numpy's integers). Return None otherwise, and for
    a bool."""
    if type(value) is int:
        return value
    if isinstance(value, bool):
        return None
    try:
        return int(index(value))
    except TypeError:
        return None


cdef int64_t checked_timestamp(timestamp_ms) except? -1:
    if type(timestamp_ms) is not int or not 0 <= timestamp_ms < 2 ** 63:
        raise InvalidRecordError(
            f"timestamp_ms must be a whole number of milliseconds since 1970, 0 or more, not {timestamp_ms!r}"
            if isinstance(timestamp_ms, float) or isinstance(timestamp_ms, int) and abs(timestamp_ms) < 2 ** 64 else
            f"timestamp_ms must be an int, not {type(timestamp_ms).__name__}",
            argument="timestamp_ms")
    return timestamp_ms


cdef bint get_view(data, Py_buffer* view, str what) except -1:
    if not PyObject_CheckBuffer(data):
        raise InvalidRecordError(
            f"the {what} must be bytes, bytearray, memoryview or None, not {type(data).__name__}; "
            f"encode it, or give the producer a {what}_serializer",
            argument=what)
    try:
        PyObject_GetBuffer(data, view, PyBUF_ND | PyBUF_FORMAT)
    except (BufferError, ValueError) as error:
        raise InvalidRecordError(
            f"the {what} is a {type(data).__name__} that can't be read (not contiguous, or released); copy it",
            argument=what) from error
    if view.format != NULL and not holds_bytes(view):
        format, size = view.format.decode(errors="replace"), view.itemsize
        PyBuffer_Release(view)
        raise InvalidRecordError(
            f"the {what} is a {type(data).__name__} of format {format!r} with {size} bytes per item, not of bytes "
            f"(format 'B'); to send its memory unchanged, pass its tobytes()", argument=what)
    return True


cdef inline bint holds_bytes(Py_buffer* view) noexcept nogil:
    """Return whether each item is one byte: struct's format B, b or c, possibly after a byte order (as in ctypes)."""
    cdef const char* format = view.format
    if format[0] in (b"<", b">", b"=", b"@", b"!"):
        format += 1
    return view.itemsize == 1 and format[0] in (b"B", b"b", b"c") and format[1] == 0


cdef int raise_too_large(RecordPath self, Py_ssize_t size) except -1:
    raise RecordTooLargeError(
        f"a record of up to {size} bytes exceeds the limit of {self.max_record_size} bytes "
        "(max_request_size, or buffer_memory if that is smaller); raise that limit and the topic's max.message.bytes",
        size=size, limit=self.max_record_size)


cdef Py_ssize_t size_of_headers(headers) except -1:
    """Return the exact size of the headers, including their count. Raise unless they are a list of (str, bytes |
    None)."""
    cdef Py_ssize_t size, name_size, value_size, total
    if type(headers) is not tuple:
        raise_no_headers(headers)
    total = varint_size(len(headers))
    for header in headers:
        if type(header) is not tuple or len(header) != 2:
            raise InvalidRecordError(
                "each header must be a tuple (str, bytes or None), not "
                f"{f'a tuple of {len(header)}' if type(header) is tuple else type(header).__name__}", argument="headers")
        name, value = <tuple>header
        if not isinstance(name, str):
            raise InvalidRecordError(
                f"the name of a header must be str, not {type(name).__name__}", argument="headers")
        if value is None:
            value_size = -1
        elif isinstance(value, bytes):
            value_size = PyBytes_GET_SIZE(value)
        else:
            raise InvalidRecordError(
                f"the value of a header must be bytes or None, not {type(value).__name__}", argument="headers")
        try:
            PyUnicode_AsUTF8AndSize(name, &name_size)
        except UnicodeEncodeError:
            raise InvalidRecordError("the name of a header can't be encoded as UTF-8", argument="headers") from None
        total += varint_size(name_size) + name_size + varint_size(value_size) + (value_size if value_size > 0 else 0)
    return total


cdef int raise_no_headers(headers) except -1:
    raise InvalidRecordError(
        f"headers must be a list of (str, bytes) pairs, not {type(headers).__name__}", argument="headers")


cdef char* put_headers(char* at, headers) except NULL:
    # size_of_headers() has checked the types and counted the bytes.
    cdef Py_ssize_t size
    cdef const char* text
    at = put_varint(at, len(headers))
    for header in headers:
        name, value = <tuple>header
        text = PyUnicode_AsUTF8AndSize(name, &size)
        at = put_bytes(at, text, size)
        if value is None:
            at = put_varint(at, -1)
        else:
            at = put_bytes(at, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    return at


# ------------------------------------------------------------------------------------- the coroutine of send

cdef extern from "Python.h":
    int PyIter_Send(object iterator, object value, PyObject** result) except -1
    int PyErr_WarnFormat(object category, Py_ssize_t stack_level, const char* format, ...) except -1

cdef extern from *:
    """
    /* A method of a Cython class is a PyCFunctionObject, and shares its PyMethodDef with no other method. */
    static int aioproducer_call_instead(PyObject *method, PyObject *other) {
        PyMethodDef *called = ((PyCFunctionObject *)method)->m_ml, *instead = ((PyCFunctionObject *)other)->m_ml;
        if (called->ml_flags != instead->ml_flags) return 0;
        called->ml_meth = instead->ml_meth;
        return 1;
    }
    """
    bint call_instead "aioproducer_call_instead"(object method, object other)

# The results of the am_send slot, as in Python.h
DEF RETURNED = 0
DEF YIELDED = 1

cdef enum CallState:
    CREATED = 1
    RUNNING
    GIVING_WAY     # `rest` is the result
    WAITING        # for `rest`
    OVER


@cython.final
@cython.freelist(64)
cdef class SendCall:
    """The coroutine that `send` and `send_and_wait` return.

    A Cython coroutine needs four objects for each call, which account for a sixth of the CPU time for a small
    record. A SendCall is a single object. It appends the record itself if that can be done without waiting, and
    otherwise runs another coroutine."""

    cdef RecordPath path
    cdef object topic, value, key, partition, timestamp_ms, headers, timeout, key_serializer, value_serializer
    cdef object rest       # the coroutine or the Delivery that it waits for
    cdef uint8_t state     # a CallState
    cdef bint waits        # whether this is send_and_wait

    def __init__(self):
        raise TypeError("Producer.send() creates this coroutine; it cannot be created directly")

    def __dealloc__(self):
        if self.state == CREATED:
            PyErr_WarnFormat(RuntimeWarning, 1, b"coroutine '%s' was never awaited", name_of(self))

    def __await__(self):
        return self

    def __next__(self):
        return self.send(None)

    def send(self, value):
        cdef PyObject* result = NULL
        cdef int outcome = send_to_call(<PyObject*>self, <PyObject*>value, &result)
        answer = <object>result
        Py_DECREF(answer)          # `result` is a separate reference
        if outcome == YIELDED:
            return answer
        raise StopIteration(answer)

    def throw(self, kind, value=None, traceback=None):
        cdef CallState before = <CallState>self.state
        rest = self.rest
        check_may_resume(self)
        self.state = OVER
        self.rest = None
        if not isinstance(kind, BaseException):
            kind = value if isinstance(value, BaseException) else kind() if value is None else kind(value)
        if before != WAITING or type(rest) is Delivery:
            raise kind
        self.state = RUNNING
        try:
            yielded = rest.throw(kind)
        except BaseException:      # including StopIteration: the coroutine has returned
            self.state = OVER
            raise
        self.state = WAITING
        self.rest = rest
        return yielded

    def close(self):
        if self.state == RUNNING:
            raise ValueError("coroutine already executing")
        rest, self.rest = self.rest, None
        has_coroutine = self.state == WAITING and type(rest) is not Delivery
        self.state = OVER
        if has_coroutine:
            rest.close()

    @property
    def __name__(self):
        return self.__qualname__.partition(".")[2]

    @property
    def __qualname__(self):
        return name_of(self).decode()

    # Tools that show coroutines look for these attributes. There is neither a frame nor a code object.
    @property
    def cr_running(self):
        return self.state == RUNNING

    @property
    def cr_suspended(self):
        return self.state in (GIVING_WAY, WAITING)

    @property
    def cr_await(self):
        return self.rest if self.state == WAITING else None

    @property
    def cr_frame(self):
        return None

    @property
    def cr_code(self):
        return None

    def __repr__(self):
        return f"<coroutine {self.__qualname__}>"


cdef inline const char* name_of(SendCall self) noexcept:
    return b"Producer.send_and_wait" if self.waits else b"Producer.send"


cdef inline SendCall new_call(RecordPath path, bint waits, topic, value, key, partition, timestamp_ms, headers, timeout,
                              key_serializer, value_serializer):
    cdef SendCall call = SendCall.__new__(SendCall)
    call.path = path
    call.waits = waits
    call.topic = topic
    call.value = value
    call.key = key
    call.partition = partition
    call.timestamp_ms = timestamp_ms
    call.headers = headers
    call.timeout = timeout
    call.key_serializer = key_serializer
    call.value_serializer = value_serializer
    call.state = CREATED
    return call


cdef inline int check_may_resume(SendCall self) except -1:
    if self.state == OVER:
        raise RuntimeError("cannot reuse already awaited coroutine")
    if self.state == RUNNING:
        raise ValueError("coroutine already executing")
    return 0


cdef int send_to_call(PyObject* itself, PyObject* value, PyObject** result) except -1:
    """Implement the am_send slot: run until the call waits or ends."""
    cdef SendCall self = <SendCall>itself
    cdef CallState before = <CallState>self.state
    cdef int outcome = -1
    result[0] = NULL
    check_may_resume(self)
    if before == CREATED and <object>value is not None:
        raise TypeError("can't send non-None value to a just-started coroutine")
    self.state = RUNNING
    try:                           # `except` would save the exception state for each record; `finally` does not
        if before == CREATED:
            outcome = begin(self, result)
        elif before == GIVING_WAY:
            outcome = give(self.rest, result)
        else:
            outcome = go_on(self, <object>value, result)
    finally:
        if outcome != YIELDED:
            self.state = OVER
            self.rest = None
    return outcome


cdef inline int give(answer, PyObject** result) noexcept:
    """Return from the call with this result."""
    Py_INCREF(answer)
    result[0] = <PyObject*>answer
    return RETURNED


cdef inline int go_on(SendCall self, value, PyObject** result) except -1:
    cdef int outcome
    if type(self.rest) is Delivery:
        outcome = send_to_delivery(<PyObject*>self.rest, <PyObject*>value, result)
    else:
        outcome = PyIter_Send(self.rest, value, result)
    if outcome == YIELDED:
        self.state = WAITING
    return outcome


cdef int begin(SendCall self, PyObject** result) except -1:
    """Append the record, or begin to wait until that is possible."""
    cdef RecordPath path = self.path
    cdef Delivery delivery
    headers, span = self.headers, None
    if path._tracer is not None:
        span = path._tracer.begin(self.topic, self.value, self.key, headers, 1)
        if type(span) is list:     # the call is not recorded; these headers say so
            headers, span = span, None
    if span is None:
        sent = send_now(path, self.topic, self.value, self.key, self.partition, self.timestamp_ms, headers,
                        self.timeout, self.key_serializer, self.value_serializer)
    else:
        sent = path._send_traced(span, self.topic, self.value, self.key, self.partition, self.timestamp_ms,
                                 self.timeout, self.key_serializer, self.value_serializer)
    if type(sent) is not Delivery:
        self.rest = path._send_after_a_wait(span, sent, self.timeout, self.waits)
        return go_on(self, None, result)
    delivery = <Delivery>sent
    if self.waits:
        hurry(path, delivery)
        self.rest = delivery
        return go_on(self, None, result)
    if path.burst >= YIELD_AFTER:
        # A loop of sends that never has to wait would block all other tasks, including the sender.
        path.burst = 0
        self.rest = delivery
        self.state = GIVING_WAY
        Py_INCREF(None)
        result[0] = <PyObject*>None
        return YIELDED
    return give(delivery, result)


cdef inline int hurry(RecordPath path, Delivery delivery) except -1:
    """Let a record's batch be sent without lingering. If nothing else is buffered or in flight, send it
    immediately."""
    cdef Batch batch = delivery.batch
    if not batch.is_due:
        batch.is_due = True
        path.accumulator.hurry(batch)
    if (batch.record_count == 1 and path.memory.total - path.memory.available == batch.reserved
            and path.send_alone is not None):
        path.send_alone()
    return 0


aioproducer_set_am_send(<PyObject*>SendCall, send_to_call)


cdef class _Calls(RecordPath):
    """The code that runs when RecordPath's async methods are called. This class has no instances."""

    def send(self, topic, value=None, key=None, partition=None, timestamp_ms=None, headers=None, *,
             timeout=None, key_serializer=None, value_serializer=None):
        return new_call(self, False, topic, value, key, partition, timestamp_ms, headers, timeout, key_serializer,
                        value_serializer)

    def send_and_wait(self, topic, value=None, key=None, partition=None, timestamp_ms=None, headers=None, *,
                      timeout=None, key_serializer=None, value_serializer=None):
        return new_call(self, True, topic, value, key, partition, timestamp_ms, headers, timeout, key_serializer,
                        value_serializer)


# The async methods keep their names, signatures and documentation, and tools still recognize them as async. Their own
# bodies do not run.
call_instead(RecordPath.send, _Calls.send)
call_instead(RecordPath.send_and_wait, _Calls.send_and_wait)

# ------------------------------------------------------------------------------------------------- send_many

include "_lines.pxi"
include "_columns.pxi"
