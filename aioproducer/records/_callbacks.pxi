# The callbacks of deliveries that have ended. Included by _record_path.pyx.
#
# asyncio schedules a call in the loop for each callback of a future. Here, a single call wakes all tasks that await
# records in the same batch.

cdef extern from "Python.h":
    int PyContext_Enter(object context) except -1
    int PyContext_Exit(object context) except -1


@cython.final
cdef class Callbacks:
    """Delivery callbacks in the order in which they are called, each with its own context."""

    cdef object loop
    cdef list entries              # (callback, context)
    cdef list deliveries           # the delivery of each entry
    cdef Py_ssize_t called

    def __cinit__(self):
        self.entries = []
        self.deliveries = []

    cdef int take(self, Delivery delivery) except -1:
        """Take over the callbacks of a delivery that has just ended. A Gathering is not callable, so it is notified
        now."""
        callbacks = delivery.callbacks
        delivery.callbacks = None
        if callbacks is None:
            return 0
        for entry in (callbacks if type(callbacks) is list else (callbacks,)):
            if type((<tuple>entry)[0]) is Gathering:
                note_gathered(<Gathering>(<tuple>entry)[0], delivery)
            else:
                self.entries.append(entry)
                self.deliveries.append(delivery)
        return 0

    cdef int schedule(self, loop) except -1:
        """Let the loop call all callbacks, one after another, in its next turn."""
        if len(self.entries) > 1:
            self.loop = loop
            loop.call_soon(self)
        elif self.entries:
            callback, context = <tuple>self.entries[0]
            loop.call_soon(callback, self.deliveries[0], context=context)
        return 0

    def __call__(self):
        while self.called < len(self.entries):
            callback, context = <tuple>self.entries[self.called]
            delivery = self.deliveries[self.called]
            self.called += 1
            try:
                PyContext_Enter(context)
                try:
                    callback(delivery)
                finally:
                    PyContext_Exit(context)
            except ENDS_OF_THE_PROGRAM:
                self.loop.call_soon(self)      # the loop may continue, and other tasks are waiting for their records
                raise
            except BaseException as error:     # as in asyncio.Handle
                self.loop.call_exception_handler({
                    "message": f"Exception in callback {callback!r}", "exception": error, "future": delivery})

    def __repr__(self):
        return f"<Callbacks of {len(self.deliveries)} records>"


cdef int schedule_callbacks(Delivery delivery) except -1:
    """Schedule the callbacks of a delivery that has just ended."""
    cdef Callbacks callbacks = Callbacks.__new__(Callbacks)
    callbacks.take(delivery)
    return callbacks.schedule(delivery.batch.loop)


