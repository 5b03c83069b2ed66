# Splits text into lines without creating an object per line. Part of _record_path.pyx, which includes this file.
#
#     Slices       a column for send_many
#     split_lines  text as columns

from libc.string cimport memchr, memcmp

@cython.final
cdef class _Bounds:
    """The bounds of byte strings in `data`: for each, its start and end, or 0 and -1 for null."""

    cdef bytes data
    cdef int64_t* pairs

    def __dealloc__(self):
        free(self.pairs)


@cython.final
cdef class Slices:
    """A column for send_many: byte strings that are parts of one bytes object, or None. It copies no bytes."""

    cdef _Bounds bounds
    cdef Py_ssize_t first, length

    def __len__(self):
        return self.length

    def __getitem__(self, Py_ssize_t index):
        cdef int64_t* pair
        if not 0 <= index < self.length:
            raise IndexError(index)
        pair = self.bounds.pairs + 2 * (self.first + index)
        return None if pair[1] < pair[0] else self.bounds.data[pair[0]:pair[1]]

    def slice(self, Py_ssize_t start, Py_ssize_t length):
        """Return up to `length` items, starting at index `start`."""
        start = min(max(start, 0), self.length)
        return slices_of(self.bounds, self.first + start, min(max(length, 0), self.length - start))


cdef Slices slices_of(_Bounds bounds, Py_ssize_t first, Py_ssize_t length):
    cdef Slices slices = Slices.__new__(Slices)
    slices.bounds = bounds
    slices.first = first
    slices.length = length
    return slices


cdef _Bounds bounds_of(bytes data, Py_ssize_t length):
    cdef _Bounds bounds = _Bounds.__new__(_Bounds)
    bounds.data = data
    bounds.pairs = <int64_t*>malloc(max(length, 1) * 2 * sizeof(int64_t))
    if bounds.pairs == NULL:
        raise MemoryError
    return bounds


cdef int64_t find_text(const char* data, int64_t start, int64_t end, const char* wanted, int64_t size) noexcept nogil:
    """Return where `wanted`, which has at least one byte, begins in data[start:end]; -1 if it is not there."""
    cdef const void* found
    while end - start >= size:
        found = memchr(data + start, wanted[0], <size_t>(end - start - size + 1))
        if found == NULL:
            return -1
        start = <const char*>found - data
        if memcmp(data + start, wanted, <size_t>size) == 0:
            return start
        start += 1
    return -1


cdef inline void bound(int64_t* pair, const char* data, int64_t start, int64_t end,
                       const char* null_text, int64_t null_size) noexcept nogil:
    """Store the bounds of one byte string, or the bounds that mean null if the string equals `null_text`."""
    if null_size >= 0 and end - start == null_size and memcmp(data + start, null_text, <size_t>null_size) == 0:
        pair[0] = 0
        pair[1] = -1
    else:
        pair[0] = start
        pair[1] = end


def split_lines(bytes data not None, bytes delimiter=None, bytes null=None):
    """Split text into lines, and each line into key and value. This releases the GIL.

    Args:
        data: lines that are separated by line feeds. A trailing line feed starts an empty line, as with bytes.split.
        delimiter: the non-empty text between key and value; a line without it has no key.
        null: the text that stands for a null key or value.

    Returns:
        The keys and the values, both as Slices. The keys are None if there is no delimiter.
    """
    cdef const char* text = data
    cdef const char* delimiter_text = NULL
    cdef const char* null_text = NULL
    cdef int64_t size = len(data), delimiter_size = 0, null_size = -1
    cdef int64_t start = 0, end, middle
    cdef Py_ssize_t row, count = data.count(b"\n") + 1
    cdef _Bounds values = bounds_of(data, count), keys = None
    cdef int64_t* key_pairs = NULL
    cdef int64_t* value_pairs = values.pairs
    cdef const void* found
    if delimiter is not None:
        delimiter_text, delimiter_size = delimiter, len(delimiter)
        if delimiter_size == 0:
            raise ValueError("the delimiter is empty")
        keys = bounds_of(data, count)
        key_pairs = keys.pairs
    if null is not None:
        null_text, null_size = null, len(null)
    with nogil:
        for row in range(count):
            found = memchr(text + start, 10, <size_t>(size - start))
            end = size if found == NULL else <const char*>found - text
            if key_pairs != NULL:
                middle = find_text(text, start, end, delimiter_text, delimiter_size)
                if middle < 0:
                    key_pairs[2 * row] = 0
                    key_pairs[2 * row + 1] = -1
                else:
                    bound(key_pairs + 2 * row, text, start, middle, null_text, null_size)
                    start = middle + delimiter_size
            bound(value_pairs + 2 * row, text, start, end, null_text, null_size)
            start = end + 1
    return None if keys is None else slices_of(keys, 0, count), slices_of(values, 0, count)
