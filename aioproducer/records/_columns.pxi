# Columns of records, for send_many: lists, or Arrow arrays read through the Arrow C data interface without creating a
# Python object per row. Part of _record_path.pyx, which includes this file.
#
#     Piece     one contiguous Arrow array, or one list
#     Column    a sequence of pieces
#     Rows      the columns of one call, and the batch of each row

from array import array

from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int8_t, int16_t, uint16_t
from libc.stdlib cimport calloc, realloc
from libc.string cimport memset

cdef extern from "_portable.h" nogil:
    uint32_t aioproducer_remainder(uint32_t value, uint32_t count, uint64_t inverse)

cdef extern from *:
    """
    struct ArrowSchema {
        const char *format, *name, *metadata;
        int64_t flags, n_children;
        struct ArrowSchema **children, *dictionary;
        void (*release)(struct ArrowSchema *);
        void *private_data;
    };
    struct ArrowArray {
        int64_t length, null_count, offset, n_buffers, n_children;
        const void **buffers;
        struct ArrowArray **children, *dictionary;
        void (*release)(struct ArrowArray *);
        void *private_data;
    };
    struct ArrowArrayStream {
        int (*get_schema)(struct ArrowArrayStream *, struct ArrowSchema *);
        int (*get_next)(struct ArrowArrayStream *, struct ArrowArray *);
        const char *(*get_last_error)(struct ArrowArrayStream *);
        void (*release)(struct ArrowArrayStream *);
        void *private_data;
    };
    """
    # https://arrow.apache.org/docs/format/CDataInterface.html
    struct ArrowSchema:
        const char* format
        const char* name
        int64_t n_children
        ArrowSchema** children
        ArrowSchema* dictionary
        void (*release)(ArrowSchema*)
    struct ArrowArray:
        int64_t length
        int64_t null_count
        int64_t offset
        int64_t n_buffers
        int64_t n_children
        const void** buffers
        ArrowArray** children
        ArrowArray* dictionary
        void (*release)(ArrowArray*)
    struct ArrowArrayStream:
        int (*get_schema)(ArrowArrayStream*, ArrowSchema*)
        int (*get_next)(ArrowArrayStream*, ArrowArray*)
        const char* (*get_last_error)(ArrowArrayStream*)

DEF SLICE = 2 << 20            # bytes that send_many may encode before it lets other tasks run, about 0.3 ms
DEF ROW_COST = 100             # bytes added to each row's size when the row is counted toward SLICE
DEF REFUSAL_COST = 20000       # bytes counted for each rejected row, because most of these rows raise an error

DEF INLINE_VIEW = 12           # the size in bytes up to which an Arrow view contains the value itself

cdef enum Pause:
    COMPLETE
    TURN
    FULL

cdef enum Kind:
    NOTHING        # every row is null
    OBJECTS        # a list of Python objects
    BINARY
    LARGE_BINARY
    VIEW
    FIXED
    INTEGER
    DICTIONARY     # integers that point into another piece
    LIST
    LARGE_LIST
    SLICES         # pairs of bounds, as in Slices

_NAMES = {"values": "value", "keys": "key", "headers": "headers", "timestamps": "timestamp", "partitions": "partition"}


@cython.final
cdef class _Memory:
    """Memory that an Arrow stream has provided. The memory is released when no piece refers to it any longer."""

    cdef ArrowSchema schema
    cdef ArrowArray array

    def __cinit__(self):
        memset(&self.schema, 0, sizeof(ArrowSchema))
        memset(&self.array, 0, sizeof(ArrowArray))

    def __dealloc__(self):
        if self.array.release != NULL:
            self.array.release(&self.array)
        if self.schema.release != NULL:
            self.schema.release(&self.schema)


@cython.final
cdef class Piece:
    """One contiguous Arrow array, or one list."""

    cdef object owner
    """The object that keeps alive the memory to which the pointers refer."""
    cdef Kind kind
    cdef Py_ssize_t length
    cdef int64_t offset
    cdef const uint8_t* validity
    """A bitmap with one bit per row, which is set unless the row is null; NULL if no row is null."""
    cdef const char* buffer
    """The offsets, views, fixed-size values or integers of the array."""
    cdef const char* data
    cdef const void** more
    """The data buffers of views."""
    cdef int width
    """The size in bytes of an integer or of a fixed-size value."""
    cdef bint is_signed
    cdef bint is_text
    """True if the bytes are UTF-8, as Arrow guarantees for strings."""
    cdef int64_t times, parts
    """For timestamps: an integer multiplied by `times` and divided by `parts` is the time in milliseconds."""
    cdef list objects
    cdef Piece inner
    """The values of a dictionary, or the names of headers."""
    cdef Piece values
    """The values of headers."""


cdef inline bint is_null(Piece piece, int64_t at) noexcept nogil:
    return piece.validity != NULL and not (piece.validity[at >> 3] >> (at & 7)) & 1


cdef int64_t integer_at(Piece piece, int64_t at) noexcept nogil:
    # These are `if` statements because a conditional expression would convert both branches to the unsigned type.
    cdef const char* found = piece.buffer + at * piece.width
    if piece.width == 8:
        return (<const int64_t*>found)[0]
    if piece.is_signed:
        if piece.width == 4:
            return (<const int32_t*>found)[0]
        if piece.width == 2:
            return (<const int16_t*>found)[0]
        return (<const int8_t*>found)[0]
    if piece.width == 4:
        return (<const uint32_t*>found)[0]
    if piece.width == 2:
        return (<const uint16_t*>found)[0]
    return (<const uint8_t*>found)[0]


cdef inline int bytes_at(Piece piece, int64_t row, const char** data, Py_ssize_t* size) noexcept nogil:
    """Point `data` at the bytes of a row of an Arrow array; `size` is -1 for null."""
    cdef int64_t at = piece.offset + row
    cdef int32_t start
    if piece.kind == BINARY and piece.validity == NULL:
        start = (<const int32_t*>piece.buffer)[at]
        data[0] = piece.data + start
        size[0] = (<const int32_t*>piece.buffer)[at + 1] - start
        return 0
    return other_bytes_at(piece, at, data, size)


cdef int other_bytes_at(Piece piece, int64_t at, const char** data, Py_ssize_t* size) noexcept nogil:
    cdef int64_t start
    cdef const int32_t* view
    if piece.kind == NOTHING or is_null(piece, at):
        size[0] = -1
    elif piece.kind == BINARY:
        start = (<const int32_t*>piece.buffer)[at]
        data[0] = piece.data + start
        size[0] = (<const int32_t*>piece.buffer)[at + 1] - start
    elif piece.kind == LARGE_BINARY:
        start = (<const int64_t*>piece.buffer)[at]
        data[0] = piece.data + start
        size[0] = (<const int64_t*>piece.buffer)[at + 1] - start
    elif piece.kind == VIEW:
        view = <const int32_t*>(piece.buffer + 16 * at)
        size[0] = view[0]
        data[0] = <const char*>(view + 1) if view[0] <= INLINE_VIEW else <const char*>piece.more[view[2]] + view[3]
    elif piece.kind == FIXED:
        data[0] = piece.buffer + at * piece.width
        size[0] = piece.width
    elif piece.kind == SLICES:
        start = (<const int64_t*>piece.buffer)[2 * at]
        data[0] = piece.data + start
        size[0] = (<const int64_t*>piece.buffer)[2 * at + 1] - start
    else:
        return bytes_at(piece.inner, integer_at(piece, at), data, size)
    return 0


cdef int header_range(Piece piece, int64_t row, int64_t* first, int64_t* end) noexcept nogil:
    """Return the range of the inner rows that are the headers of a row."""
    cdef int64_t at = piece.offset + row
    first[0] = end[0] = 0
    if piece.kind == LIST and not is_null(piece, at):
        first[0] = (<const int32_t*>piece.buffer)[at]
        end[0] = (<const int32_t*>piece.buffer)[at + 1]
    elif piece.kind == LARGE_LIST and not is_null(piece, at):
        first[0] = (<const int64_t*>piece.buffer)[at]
        end[0] = (<const int64_t*>piece.buffer)[at + 1]
    return 0


cdef int reject_nulls(ArrowArray* array, int64_t first, int64_t end, str what, str argument) except -1:
    """Raise InvalidRecordError if a struct from `first` up to `end` is null, because the code that reads the fields
    does not check this."""
    cdef const uint8_t* validity = <const uint8_t*>array.buffers[0] if array.n_buffers > 0 else NULL
    cdef int64_t at
    if validity == NULL or array.null_count == 0:
        return 0
    for at in range(array.offset + first, array.offset + end):
        if not (validity[at >> 3] >> (at & 7)) & 1:
            raise InvalidRecordError(f"{argument}: the {what} must not be null", argument=argument)
    return 0


cdef Piece piece_of(ArrowSchema* schema, ArrowArray* array, int64_t shift, int64_t length, object owner, str argument):
    """Return the piece for an array, or for the `length` rows of a nested array that start at row `shift`.

    Raises InvalidRecordError if the type of the array is not valid for `argument`.
    """
    cdef Piece piece = Piece.__new__(Piece)
    cdef str format = schema.format.decode()
    piece.owner = owner
    piece.is_text = format in ("u", "U", "vu")
    piece.length = length
    piece.offset = array.offset + shift
    piece.validity = <const uint8_t*>array.buffers[0] if array.n_buffers > 0 else NULL
    piece.buffer = <const char*>array.buffers[1] if array.n_buffers > 1 else NULL
    if format == "n":
        piece.kind = NOTHING
        piece.validity = NULL
    elif argument in ("partitions", "timestamps"):
        read_integers(piece, format, argument, schema.dictionary != NULL)
    elif argument == "headers":
        read_headers(piece, format, schema, array, owner)
    elif schema.dictionary != NULL:
        read_integers(piece, format, "indexes", False)
        piece.kind = DICTIONARY
        piece.inner = piece_of(schema.dictionary, array.dictionary, 0, array.dictionary.length, owner, argument)
        piece.is_text = piece.inner.is_text
    elif format in ("z", "u"):
        piece.kind = BINARY
        piece.data = <const char*>array.buffers[2]
    elif format in ("Z", "U"):
        piece.kind = LARGE_BINARY
        piece.data = <const char*>array.buffers[2]
    elif format in ("vz", "vu"):
        piece.kind = VIEW
        piece.more = array.buffers + 2
    elif format.startswith("w:"):
        piece.kind = FIXED
        piece.width = int(format[2:])
    else:
        raise_type(argument, format, "binary or string")
    return piece


cdef int read_integers(Piece piece, str format, str argument, bint is_dictionary) except -1:
    cdef str unit
    widths = {"c": 1, "C": 1, "s": 2, "S": 2, "i": 4, "I": 4, "l": 8, "L": 8}
    piece.kind = INTEGER
    piece.times = piece.parts = 1
    if argument == "timestamps" and not is_dictionary and (format[:2] == "ts" or format == "tdm"):
        unit = format[2]
        piece.width = 8
        piece.is_signed = True
        piece.times = 1000 if unit == "s" else 1
        piece.parts = {"u": 1000, "n": 1000000}.get(unit, 1)
    elif format in widths and not is_dictionary:
        piece.width = widths[format]
        piece.is_signed = format.islower()
    else:
        raise_type(argument, format, "timestamp or integer (ms)" if argument == "timestamps" else "integer")
    return 0


cdef int read_headers(Piece piece, str format, ArrowSchema* schema, ArrowArray* array, object owner) except -1:
    cdef ArrowSchema* pair
    cdef ArrowArray* pairs
    cdef int64_t row, first, end
    if format not in ("+l", "+L", "+m") or schema.dictionary != NULL:
        raise_type("headers", format, "list<struct<key: string, value: binary>> or map<string, binary>")
    piece.kind = LARGE_LIST if format == "+L" else LIST
    pair, pairs = schema.children[0], array.children[0]
    if pair.format.decode() != "+s" or pair.n_children != 2:
        raise_type("headers", format, "list<struct<key: string, value: binary>> or map<string, binary>")
    for row in range(piece.length):
        header_range(piece, row, &first, &end)
        reject_nulls(pairs, first, end, "pairs of name and value", "headers")
    piece.inner = piece_of(
        pair.children[0], pairs.children[0], pairs.offset, pairs.length, owner, "the names of headers")
    piece.values = piece_of(
        pair.children[1], pairs.children[1], pairs.offset, pairs.length, owner, "the values of headers")
    return 0


cdef int raise_type(str argument, str format, str wanted) except -1:
    raise InvalidRecordError(
        f"{argument}: an Arrow array of format {format!r} is not accepted; cast the array to {wanted}",
        argument=argument)


@cython.final
cdef class Column:
    """A sequence of pieces, read from the first row to the last."""

    cdef list pieces
    cdef Py_ssize_t length
    cdef Piece piece
    """The piece that contains the rows from `first` up to `end`."""
    cdef Py_ssize_t number, first, end

    def __cinit__(self):
        self.pieces = []

    cdef int add(self, Piece piece) except -1:
        if piece.length > 0:
            self.pieces.append(piece)
            self.length += piece.length
        return 0

    cdef inline Piece at(self, Py_ssize_t row):
        if row >= self.end:
            self.seek(row)
        return self.piece

    cdef int seek(self, Py_ssize_t row) except -1:
        while row >= self.end:
            self.piece = self.pieces[self.number]
            self.number += 1
            self.first = self.end
            self.end += self.piece.length
        return 0


cdef Column slices_column(Slices slices):
    cdef Column column = Column()
    cdef Piece piece = Piece.__new__(Piece)
    piece.kind = SLICES
    piece.owner = slices.bounds
    piece.length = slices.length
    piece.offset = slices.first
    piece.buffer = <const char*>slices.bounds.pairs
    piece.data = <const char*>slices.bounds.data
    column.add(piece)
    return column


cdef Column list_column(list objects):
    cdef Column column = Column()
    cdef Piece piece = Piece.__new__(Piece)
    piece.kind = OBJECTS
    piece.objects = objects
    piece.length = len(objects)
    column.add(piece)
    return column


cdef int add_arrays(dict columns, ArrowSchema* schema, ArrowArray* array, object owner, str argument) except -1:
    """Add an array to the column for `argument`, or each field of a record batch to the column with the matching
    name."""
    cdef int64_t number
    cdef str name
    cdef ArrowSchema* field
    if argument != "values" or schema.format.decode() != "+s":
        (<Column>columns.setdefault(argument, Column())).add(piece_of(schema, array, 0, array.length, owner, argument))
        return 0
    reject_nulls(array, 0, array.length, "rows", argument)
    found = set()
    known = {name: argument for argument, name in _NAMES.items()}
    for number in range(schema.n_children):
        field = schema.children[number]
        name = field.name.decode() if field.name != NULL else ""
        if name not in known:
            raise InvalidRecordError(
                f"values: the record batch has a column {name!r}, which send_many does not accept; leave the column "
                f"out or rename it (to one of {', '.join(known)})", argument="values")
        if name in found:
            raise InvalidRecordError(
                f"values: the record batch has two columns named {name!r}; keep one", argument="values")
        found.add(name)
        piece = piece_of(field, array.children[number], array.offset, array.length, owner, known[name])
        (<Column>columns.setdefault(known[name], Column())).add(piece)
    if "values" not in columns and "keys" not in columns:
        raise InvalidRecordError("values: the record batch has neither a column value nor a column key", argument="values")
    return 0


cdef dict columns_of(data, str argument):
    """Return the columns that one argument of send_many contains, by the argument that each column stands for."""
    cdef dict columns = {}
    cdef ArrowArrayStream* stream
    cdef _Memory memory, schema
    cdef int status
    if isinstance(data, (list, tuple)):
        return {argument: list_column(list(data))}
    if isinstance(data, Slices) and argument in ("values", "keys"):
        return {argument: slices_column(data)}
    if hasattr(data, "__arrow_c_array__"):
        owner = data.__arrow_c_array__()
        add_arrays(columns, <ArrowSchema*>PyCapsule_GetPointer(owner[0], "arrow_schema"),
                   <ArrowArray*>PyCapsule_GetPointer(owner[1], "arrow_array"), owner, argument)
    elif hasattr(data, "__arrow_c_stream__"):
        owner = data.__arrow_c_stream__()
        stream = <ArrowArrayStream*>PyCapsule_GetPointer(owner, "arrow_array_stream")
        schema = _Memory()
        status = stream.get_schema(stream, &schema.schema)
        while status == 0:
            memory = _Memory()
            status = stream.get_next(stream, &memory.array)
            if status == 0 and memory.array.release == NULL:
                break
            if status == 0:
                add_arrays(columns, &schema.schema, &memory.array, (schema, memory), argument)
        if status != 0:
            raise InvalidRecordError(
                f"{argument}: the Arrow stream failed: {(stream.get_last_error(stream) or b'').decode(errors='replace')}",
                argument=argument)
        if not columns:
            columns[argument] = Column()
    else:
        raise InvalidRecordError(
            f"{argument} must be a list, or Arrow data (an array, a record batch, a table), not "
            f"{type(data).__name__}", argument=argument)
    return columns


# ------------------------------------------------------------------------------------------------------ Rows

@cython.final
cdef class Span:
    """Consecutive records in a batch that are rows from one call."""

    cdef readonly Batch batch
    cdef readonly int first
    cdef readonly int count

    def __init__(self, Batch batch, int first, int count=0):
        self.batch = batch
        self.first = first
        self.count = count


@cython.final
cdef class Rows:
    """The rows of one send_many call: their contents until they are in the buffer, and the partition of each."""

    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t next
    """All rows before this one are in the buffer or have an error."""
    cdef readonly dict errors
    """The error of each row that is not in the buffer, by row."""
    cdef public bint has_waited_in_vain
    """True if a row has already waited (as `send` does) for a partition that did not appear."""
    cdef readonly list spans
    """The spans in the order of their first rows. The spans of a partition are also in the order of their records."""
    cdef Column values, keys, headers, timestamps, partitions
    cdef int partition
    """The partition of all rows; -1 if each row names its own or leaves it to the partitioner."""
    cdef int32_t* places
    """The partition of each row; -1 if it was not sent."""
    cdef int64_t* times
    """The timestamp of each row in ms; NULL if the call has no timestamps."""
    cdef list clock
    """The times of rows if `times` is NULL: (row, ms) for each row whose time differs from the previous row's."""
    cdef PyObject** last
    """The last Span of each partition, a borrowed reference to an item of `spans`; NULL if there is none."""
    cdef int partition_count
    """The length of `last`."""

    def __init__(self, values, keys, headers, timestamps, partitions):
        cdef dict columns = columns_of(values, "values")
        cdef str argument
        self.partition = -1
        for argument, data in (("keys", keys), ("headers", headers), ("timestamps", timestamps),
                               ("partitions", partitions)):
            if data is None:
                continue
            if argument in columns:
                raise InvalidRecordError(
                    f"{argument} is given twice: as an argument and as the column {_NAMES[argument]!r} of the record "
                    "batch; keep one",
                    argument=argument)
            number = whole_number(data) if argument == "partitions" else None
            if number is not None:
                if not 0 <= number < 2 ** 31:
                    raise InvalidRecordError(
                        f"the partition must be a whole number, 0 or more, not {number}", argument="partitions")
                self.partition = number
            else:
                columns.update(columns_of(data, argument))
        self.count = max(column_length(column) for column in columns.values())
        for argument, column in columns.items():
            if column_length(column) != self.count:
                raise InvalidRecordError(
                    f"the columns differ in length: {', '.join(f'{column_length(c)} {a}' for a, c in columns.items())}",
                    argument=argument)
        self.values = columns.get("values")
        self.keys = columns.get("keys")
        self.headers = columns.get("headers")
        self.timestamps = columns.get("timestamps")
        self.partitions = columns.get("partitions")
        self.errors = {}
        self.spans = []
        self.places = <int32_t*>malloc(max(self.count, 1) * sizeof(int32_t))
        if self.places == NULL:
            raise MemoryError
        memset(self.places, 0xFF, self.count * sizeof(int32_t))
        self.clock = []
        if self.timestamps is not None:
            self.times = <int64_t*>calloc(max(self.count, 1), sizeof(int64_t))
            if self.times == NULL:
                raise MemoryError

    def __dealloc__(self):
        free(self.places)
        free(self.times)
        free(self.last)

    @property
    def is_complete(self):
        return self.next >= self.count

    @property
    def largest_partition(self):
        """The largest partition that a row names; -1 if no row names one."""
        cdef int64_t largest = self.partition
        cdef int64_t row
        cdef Piece piece
        if self.partitions is not None:
            for piece in self.partitions.pieces:
                for row in range(piece.length):
                    if piece.kind == OBJECTS:
                        number = piece.objects[row]
                        if type(number) is not int:
                            number = whole_number(number)
                        if number is not None:
                            largest = max(largest, min(number, 2 ** 31 - 1))
                    elif piece.kind == INTEGER and not is_null(piece, piece.offset + row):
                        largest = max(largest, integer_at(piece, piece.offset + row))
        return largest

    def reject(self, error):
        """Reject the next row."""
        self.errors[self.next] = error
        self.next += 1

    def reject_rest(self, error):
        """Reject all rows from the next one on."""
        while self.next < self.count:
            self.reject(error)

    def forget_columns(self):
        """Drop the contents of the rows, once all rows are in the buffer or rejected."""
        self.values = self.keys = self.headers = self.timestamps = self.partitions = None

    def record(self):
        """Return the next row as arguments for `send`: (value, key, partition, timestamp_ms, headers)."""
        cdef Py_ssize_t row = self.next
        return (object_at(self.values, row), object_at(self.keys, row),
                object_at(self.partitions, row) if self.partition < 0 else self.partition,
                object_at(self.timestamps, row), headers_at(self.headers, row))

    def mark_sent(self, Delivery delivery):
        """Mark the next row as appended through `send`."""
        has_ended(delivery)        # moves the delivery to the batch that now contains its record
        delivery.flags = RETRIEVED # the receipt tracks whether the result is retrieved
        if self.times == NULL:
            note_clock(self, delivery.timestamp)
        else:
            self.times[self.next] = delivery.timestamp
        note_row(self, delivery.batch, delivery.batch.queue.partition, delivery.index)

    def place(self, Py_ssize_t row):
        """Return the partition of a row; -1 if it was not sent."""
        return self.places[row]

    def timestamp(self, Py_ssize_t row):
        """Return the timestamp of a row's record in ms."""
        assert 0 <= row < self.next
        if self.times != NULL:
            return self.times[row]
        return self.clock[bisect_left(self.clock, (row + 1,)) - 1][1]

    def rows_of(self, int partition):
        """Return the rows of a partition, in the order of their records, as a memoryview of int64."""
        cdef Py_ssize_t row, count = 0
        cdef int64_t* found
        for row in range(self.next):
            count += self.places[row] == partition
        data = PyBytes_FromStringAndSize(NULL, count * sizeof(int64_t))
        found = <int64_t*>PyBytes_AS_STRING(data)
        count = 0
        for row in range(self.next):
            if self.places[row] == partition:
                found[count] = row
                count += 1
        return memoryview(data).cast("q")


def column_length(Column column):
    return column.length


cdef int note_clock(Rows rows, int64_t now) except -1:
    """Set the time for rows without a timestamp, starting with the next row."""
    if not rows.clock or rows.clock[len(rows.clock) - 1][1] != now:
        rows.clock.append((rows.next, now))
    return 0


cdef inline int note_row(Rows rows, Batch batch, int partition, int index) except -1:
    """Assign record `index` of the batch to the next row."""
    cdef Span span
    if partition < rows.partition_count and rows.last[partition] != NULL:
        span = <Span>rows.last[partition]
        if span.batch is batch and span.first + span.count == index:
            span.count += 1
            rows.places[rows.next] = partition
            rows.next += 1
            return 0
    return begin_span(rows, batch, partition, index)


cdef int begin_span(Rows rows, Batch batch, int partition, int index) except -1:
    cdef int count
    cdef PyObject** last
    if partition >= rows.partition_count:
        count = max(2 * rows.partition_count, partition + 1)
        last = <PyObject**>realloc(rows.last, count * sizeof(PyObject*))
        if last == NULL:
            raise MemoryError
        memset(last + rows.partition_count, 0, (count - rows.partition_count) * sizeof(PyObject*))
        rows.last = last
        rows.partition_count = count
    span = Span(batch, index, 1)
    rows.spans.append(span)
    rows.last[partition] = <PyObject*>span
    rows.places[rows.next] = partition
    rows.next += 1
    return 0


cdef object object_at(Column column, Py_ssize_t row):
    """Return a row as a Python object."""
    cdef Piece piece
    cdef const char* data = NULL
    cdef Py_ssize_t size
    if column is None:
        return None
    piece = column.at(row)
    row -= column.first
    if piece.kind == OBJECTS:
        return piece.objects[row]
    if piece.kind == NOTHING or is_null(piece, piece.offset + row):
        return None
    if piece.kind == INTEGER:
        return <object>integer_at(piece, piece.offset + row) * piece.times // piece.parts
    bytes_at(piece, row, &data, &size)
    return None if size < 0 else PyBytes_FromStringAndSize(data, size)


cdef object headers_at(Column column, Py_ssize_t row):
    cdef Piece piece
    cdef int64_t first, end, at
    cdef const char* data = NULL
    cdef Py_ssize_t size
    cdef list headers
    if column is None:
        return None
    piece = column.at(row)
    row -= column.first
    if piece.kind == OBJECTS:
        return piece.objects[row]
    header_range(piece, row, &first, &end)
    headers = []
    for at in range(first, end):
        bytes_at(piece.inner, at, &data, &size)
        if size < 0:
            raise InvalidRecordError("the name of a header must be a str, not null", argument="headers")
        name = PyBytes_FromStringAndSize(data, size).decode(errors="surrogateescape")
        bytes_at(piece.values, at, &data, &size)
        headers.append((name, None if size < 0 else PyBytes_FromStringAndSize(data, size)))
    return headers


# ---------------------------------------------------------------------------------------------------- encoding

ALL_APPENDED = COMPLETE    # every row is in the buffer, or has an error
OTHERS_TURN = TURN
NO_ROOM = FULL             # no memory for the next row


cdef Pause append_rows(RecordPath self, Topic topic, Rows rows, list refusals, bint is_first_waiter) except *:
    """Append rows until all are in the buffer, no memory is left, or other tasks should run. A row that cannot be
    sent gets an error."""
    cdef int64_t budget = SLICE
    while True:
        try:
            return append_good_rows(self, topic, rows, refusals, is_first_waiter, &budget)
        except (InvalidRecordError, UnknownPartitionError) as error:
            rows.reject(error.with_traceback(None))    # a traceback would keep this frame and its rows alive
            budget -= REFUSAL_COST


cdef Pause append_good_rows(RecordPath self, Topic topic, Rows rows, list refusals, bint is_first_waiter,
                            int64_t* budget) except *:
    cdef Record record
    cdef PartitionQueue queue
    cdef Batch batch
    cdef Piece values = None, keys = None
    cdef Py_ssize_t row, most
    cdef Py_ssize_t values_first = 0, values_end = rows.count if rows.values is None else 0
    cdef Py_ssize_t keys_first = 0, keys_end = rows.count if rows.keys is None else 0
    cdef int number
    cdef bint is_sticky
    cdef int count = <int>PyList_GET_SIZE(topic.queues)
    cdef uint64_t inverse = <uint64_t>-1 // <uint64_t>count + 1
    cdef int64_t now = now_ms()
    cdef object value, key, headers = None   # these keep alive the memory that the record points to
    assert refusals is None or PyList_GET_SIZE(refusals) >= count
    if rows.times == NULL:
        note_clock(rows, now)
    while rows.next < rows.count:
        if budget[0] <= 0:
            return TURN
        row = rows.next
        if row >= values_end:
            values = rows.values.at(row)
            values_first, values_end = rows.values.first, rows.values.end
        if row >= keys_end:
            keys = rows.keys.at(row)
            keys_first, keys_end = rows.keys.first, rows.keys.end
        value = read_bytes(values, row - values_first, "value", &record.value, &record.value_size)
        key = read_bytes(keys, row - keys_first, "key", &record.key, &record.key_size)
        if rows.timestamps is None:
            record.timestamp = now
        else:
            rows.times[row] = record.timestamp = timestamp_at(rows.timestamps, row, now)
        record.headers_size = 1
        if rows.headers is not None:
            headers = read_row_headers(rows.headers, row, &record.headers_size)
        most = most_bytes(&record)
        if most + HEADER > self.max_record_size:
            raise_too_large(self, most + HEADER)
        number = rows.partition if rows.partitions is None else partition_at(rows.partitions, row)
        is_sticky = False
        if number < 0:
            if record.key_size >= 0:
                number = aioproducer_remainder(
                    murmur2_of(<const unsigned char*>record.key, record.key_size) & 0x7FFFFFFF, count, inverse)
            elif refusals is not None:
                raise InvalidRecordError(
                    "a producer that takes part in another producer's transaction requires partitions= or, with the "
                    "partitioner murmur2, keys", argument="partitions")
            else:
                number = sticky(self, topic, most)
                is_sticky = True
        if number >= count:
            raise_unknown_partition(topic, number)
        if refusals is not None and refusals[number] is not None:
            rows.reject(refusals[number])
            budget[0] -= REFUSAL_COST
            continue
        queue = <PartitionQueue>PyList_GET_ITEM(topic.queues, number)
        if self.memory.waiters and not is_first_waiter:
            return FULL                # callers that are already waiting for memory come first
        batch = queue.tail
        if batch is None or batch.buffer.size + most > batch.buffer.capacity:
            while batch is None or not has_room(batch, most, self.memory):
                if self.accumulator.open_batch(queue, most) is None:
                    return FULL
                if self.accumulator.compressor.turn_is_full:
                    budget[0] = 0
                batch = queue.tail
        if rows.headers is not None and headers is None:
            write_row_with_headers(batch, &record, rows.headers, row)
        else:
            write_record(batch, &record, headers)
        if is_sticky:
            topic.sticky_bytes += most
        note_row(rows, batch, number, batch.record_count - 1)
        budget[0] -= ROW_COST + most
    rows.forget_columns()
    return COMPLETE


cdef inline object read_bytes(Piece piece, Py_ssize_t row, str what, const char** data, Py_ssize_t* size):
    """Point `data` at the bytes of a row; `size` is -1 for null. Return the Python object that keeps them alive, if
    any."""
    cdef object found
    if piece is None:
        size[0] = -1
        return None
    if piece.kind != OBJECTS:
        bytes_at(piece, row, data, size)
        return None
    found = <object>PyList_GET_ITEM(piece.objects, row)
    if found is None:
        size[0] = -1
        return None
    if not PyBytes_CheckExact(found):
        found = copied_bytes(found, what)
    data[0] = PyBytes_AS_STRING(found)
    size[0] = PyBytes_GET_SIZE(found)
    return found


cdef object copied_bytes(data, str what):
    cdef Py_buffer view
    get_view(data, &view, what)
    try:
        return PyBytes_FromStringAndSize(<const char*>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef int64_t timestamp_at(Column column, Py_ssize_t row, int64_t now) except? -1:
    cdef Piece piece = column.at(row)
    cdef int64_t at = row - column.first
    cdef int64_t found
    if piece.kind == OBJECTS:
        value = piece.objects[at]
        return now if value is None else checked_timestamp(value)
    at += piece.offset
    if piece.kind == NOTHING or is_null(piece, at):
        return now
    found = integer_at(piece, at)
    if found < 0 or found > <int64_t>0x7FFFFFFFFFFFFFFF // piece.times:
        checked_timestamp(found if found < 0 else found * <object>piece.times)
    return found * piece.times // piece.parts


cdef int partition_at(Column column, Py_ssize_t row) except? -1:
    """Return the partition that a row names; -1 if it does not name one."""
    cdef Piece piece = column.at(row)
    cdef int64_t at = row - column.first
    cdef object found
    if piece.kind == OBJECTS:
        found = piece.objects[at]
        if found is None:
            return -1
        if type(found) is not int:
            found = whole_number(found)
        if found is None:
            raise InvalidRecordError(
                f"a partition must be a whole number, 0 or more, not {type(piece.objects[at]).__name__}",
                argument="partitions")
    elif piece.kind == NOTHING or is_null(piece, piece.offset + at):
        return -1
    else:
        found = integer_at(piece, piece.offset + at)
    if not 0 <= found < 2 ** 31:
        raise InvalidRecordError(
            "a partition must be a whole number, 0 or more, not "
            f"{found if abs(found) < 2 ** 64 else 'a number this large'}", argument="partitions")
    return found


cdef object read_row_headers(Column column, Py_ssize_t row, Py_ssize_t* total):
    """Count the bytes of a row's headers. Return the headers if they are Python objects, None if they are Arrow
    data."""
    cdef Piece piece = column.at(row)
    cdef int64_t first, end, at
    cdef const char* data = NULL
    cdef Py_ssize_t size
    if piece.kind == OBJECTS:
        headers = piece.objects[row - column.first]
        headers = tuple(headers) if type(headers) is list else () if headers is None else headers
        total[0] = size_of_headers(headers)
        return headers
    header_range(piece, row - column.first, &first, &end)
    total[0] = varint_size(end - first)
    for at in range(first, end):
        bytes_at(piece.inner, at, &data, &size)
        if size < 0:
            raise InvalidRecordError("the name of a header must be a str, not null", argument="headers")
        if not piece.inner.is_text:
            check_utf_8(data, size)
        total[0] += varint_size(size) + size
        bytes_at(piece.values, at, &data, &size)
        total[0] += varint_size(size) + max(size, 0)
    return None


cdef int check_utf_8(const char* data, Py_ssize_t size) except -1:
    try:
        data[:size].decode()
    except UnicodeDecodeError:
        raise InvalidRecordError("the name of a header can't be encoded as UTF-8", argument="headers") from None
    return 0


cdef int write_row_with_headers(Batch batch, Record* record, Column column, Py_ssize_t row) except -1:
    cdef int64_t first, end, number
    cdef const char* data = NULL
    cdef Py_ssize_t size
    cdef char* at = begin_record(batch, record)
    cdef Piece piece = column.at(row)
    header_range(piece, row - column.first, &first, &end)
    at = put_varint(at, end - first)
    for number in range(first, end):
        bytes_at(piece.inner, number, &data, &size)
        at = put_bytes(at, data, size)
        bytes_at(piece.values, number, &data, &size)
        at = put_bytes(at, data, size)
    return end_record(batch, at)


cdef int raise_unknown_partition(Topic topic, int number) except -1:
    raise UnknownPartitionError(
        f"topic {topic.name} has {PyList_GET_SIZE(topic.queues)} partitions; partition {number} does not exist",
        topic=topic.name, partition=number, partitions=PyList_GET_SIZE(topic.queues))


def murmur2_partitions(keys, int partitions):
    """Return the partition that the default partitioners of Java and `Producer` choose for each key in a column.

    Args:
        keys: a list of bytes or None, or Arrow data, as for `send_many`.
        partitions: the number of partitions in the topic.

    Returns:
        An array("i") with a number for each key; -1 for a null key, whose record may go to any partition.

    Raises:
        InvalidRecordError: the keys have the wrong type, or partitions is less than 1.
    """
    cdef Column column
    cdef Piece piece
    cdef Py_ssize_t row, size
    cdef const char* data = NULL
    cdef object key
    if partitions < 1:
        raise InvalidRecordError(f"a topic must have 1 partition or more, not {partitions}", argument="partitions")
    column = columns_of(keys, "keys")["keys"]
    found = array("i", bytes(4 * column_length(column)))
    cdef int[::1] numbers = found
    for row in range(column_length(column)):
        piece = column.at(row)
        key = read_bytes(piece, row - column.first, "key", &data, &size)
        numbers[row] = -1 if size < 0 else <int>(
            (murmur2_of(<const unsigned char*>data, size) & 0x7FFFFFFF) % <uint32_t>partitions)
    return found
