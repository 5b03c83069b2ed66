# The user's serializers and interceptors on a record's path. Part of _record_path.pyx, which includes this file.
#
#     UserSerializer         one serializer, and how to call it, as determined by serializers.py
#     SerializationContext   the second argument of a serializer
#     Serialization          the serializers of one record: the value's, then the key's
#     Waiting                an async serializer's result that must still be awaited
#     call_interceptors      passes a record through the interceptors

TAKES_VALUE = 0                # f(value)
TAKES_CONTEXT = 1              # f(value, context)
TAKES_TOPIC = 2                # object.serialize(topic, value, headers)
DEF VALUE_ONLY = 0
DEF WITH_CONTEXT = 1


@cython.final
cdef class SerializationContext:
    """The destination of a serialized key or value: the second argument of a serializer that has such a parameter.

    A new context is created for each call.
    """

    cdef readonly str topic
    cdef readonly str field
    """"value" or "key"."""
    cdef public object headers
    """The record's headers, a list of (str, bytes or None). The serializer may extend it."""
    cdef object metadata

    def __init__(self, str topic, str field, headers=None, metadata=None):
        self.topic = topic
        self.field = field
        self.headers = list_of_headers(headers)
        self.metadata = metadata

    @property
    def cluster_id(self):
        """The id of the cluster, or None if it is not known."""
        return None if self.metadata is None else self.metadata.cluster.cluster_id

    def __repr__(self):
        return f"SerializationContext(topic={self.topic!r}, field={self.field!r})"


@cython.final
cdef class Waiting:
    """An async serializer's result that must still be awaited."""

    cdef readonly object awaitable

    def __init__(self, awaitable):
        self.awaitable = awaitable


cdef class UserSerializer:
    """One of the user's serializers. The base class of BoundSerializer, which creates the errors."""

    cdef readonly object serializer
    cdef readonly str field
    """"value" or "key"."""
    cdef object function
    cdef readonly int takes

    def __init__(self, serializer, str field, function, int takes):
        self.serializer = serializer
        self.field = field
        self.function = function
        self.takes = takes

    def failed(self, topic, error):
        """Return the SerializationError for an exception from the serializer."""
        raise NotImplementedError

    def settle(self, topic, result):
        """Settle a result that is not bytes: return what can be sent, or a Waiting if it must be awaited. Otherwise
        raise SerializationError."""
        raise NotImplementedError

    def checked(self, topic, result):
        """Return the awaited result if it can be sent. Otherwise raise SerializationError."""
        raise NotImplementedError


@cython.final
@cython.freelist(8)
cdef class Serialization:
    """The serializers of one record: the value's, then the key's. `run` calls the ones that have not been called yet.

    Created by new_serialization().
    """

    cdef UserSerializer of_value, of_key
    cdef readonly str topic
    cdef readonly object value, key
    cdef readonly Waiting waiting
    """The result that must be awaited before the next call to `run`; None if there is none."""
    cdef object given_headers
    cdef SerializationContext context
    """The context that was last passed to a serializer; None if there is none."""
    cdef object metadata
    cdef int left
    """The number of steps left: 2 before the value is serialized, 1 before the key is, 0 afterwards."""

    @property
    def headers(self):
        """The record's headers, including those that serializers have added."""
        return headers_of(self)

    def run(self):
        """Call the serializers that have not been called yet. Return True if all are done, False if one is
        `waiting`."""
        return run_serializers(self)

    def resume(self, result):
        """Accept the awaited result of the serializer that was `waiting`."""
        self.waiting = None
        self.keep(self.next_serializer().checked(self.topic, result))

    def failed(self, error):
        """Return the SerializationError for an exception from the serializer that was `waiting`."""
        return self.next_serializer().failed(self.topic, error)

    @property
    def waits_for(self):
        """The serializer that is `waiting`."""
        return self.next_serializer()

    cdef UserSerializer next_serializer(self):
        return self.of_value if self.left == 2 else self.of_key

    cdef int keep(self, result) except -1:
        if self.left == 2:
            self.value = result
        else:
            self.key = result
        self.left -= 1
        return 0

    cdef int accept(self, result) except -1:
        """Accept the result of call_serializer() for the next serializer."""
        if type(result) is Waiting:
            self.waiting = result
            return 0
        return self.keep(result)


cdef Serialization new_serialization(UserSerializer of_value, UserSerializer of_key, str topic, value, key, headers,
                                     metadata):
    cdef Serialization self = Serialization.__new__(Serialization)
    self.of_value = of_value
    self.of_key = of_key
    self.topic = topic
    self.value = value
    self.key = key
    self.given_headers = headers
    self.metadata = metadata
    self.left = 2
    return self


cdef inline object headers_of(Serialization self):
    return self.given_headers if self.context is None else self.context.headers


cdef list list_of_headers(headers):
    """Return a new list, which a serializer may extend."""
    if headers is None:
        return []
    if type(headers) is not list and type(headers) is not tuple:
        raise_no_headers(headers)
    return list(headers)


cdef bint run_serializers(Serialization self) except -1:
    cdef UserSerializer serializer
    if self.waiting is not None:
        return False
    while self.left:
        serializer = self.next_serializer()
        given = self.value if self.left == 2 else self.key
        if serializer is not None and given is not None:
            given = call_serializer(self, serializer, self.topic, given)
        self.accept(given)
        if self.waiting is not None:
            return False
    return True


cdef object call_serializer(Serialization self, UserSerializer serializer, str topic, given):
    """Return the bytes, None, or a Waiting. `self` may be None for a serializer that takes only the value."""
    if serializer.takes == WITH_CONTEXT:
        new_context(self, serializer)
    try:
        if serializer.takes == VALUE_ONLY:
            result = serializer.function(given)
        elif serializer.takes == WITH_CONTEXT:
            result = serializer.function(given, self.context)
        else:
            result = serializer.function(topic, given, headers_of(self))
    except Exception as error:
        raise serializer.failed(topic, error) from error
    if type(result) is bytes or result is None:
        return result
    return serializer.settle(topic, result)


cdef int new_context(Serialization self, UserSerializer serializer) except -1:
    cdef SerializationContext context = SerializationContext.__new__(SerializationContext)
    context.topic = self.topic
    context.field = serializer.field
    context.metadata = self.metadata
    context.headers = list_of_headers(headers_of(self))
    self.context = context
    return 0


cdef object call_interceptors(interceptors, list methods, record):
    """Pass a record through the interceptors' on_send `methods`, and return the resulting record."""
    for method in methods:
        try:
            result = method(record)
        except ENDS_OF_THE_PROGRAM:
            raise
        except BaseException:
            interceptors.note_failure(method)
            continue
        if isinstance(result, ProducerRecord):
            record = result
        else:
            interceptors.note_wrong_result(method, result)
    return record


def intercepted(interceptors, list methods not None, record not None):
    """Pass a record through the interceptors' on_send `methods`, and return the resulting record."""
    return call_interceptors(interceptors, methods, record)
