# One wait for many deliveries: the compiled part of `gather` (gathering.py). Included by _record_path.pyx.
#
# asyncio.gather() schedules a call in the loop for each future, and calls two of its methods. Here, a delivery that
# ends calls its Gathering directly.


@cython.final
cdef class Gathering:
    """Waits for deliveries on behalf of one call to `gather`.

    Each pending delivery has the Gathering among its callbacks. The Gathering does not refer back to the deliveries,
    because the garbage collector does not track a Delivery and could not free the cycle. The deliveries belong to the
    caller.
    """

    cdef object loop
    cdef bint returns_exceptions
    cdef Py_ssize_t pending
    cdef Delivery failed           # the first that failed or was cancelled, unless exceptions are returned
    cdef readonly object waiter
    """The future that ends the wait; None if there is nothing to wait for."""

    def __init__(self, loop, bint returns_exceptions):
        self.loop = loop
        self.returns_exceptions = returns_exceptions

    def watch(self, list deliveries):
        """Begin to wait. If any element is not a delivery, do nothing and return False.

        Raises:
            ValueError: a delivery belongs to another event loop.
        """
        cdef Delivery delivery
        cdef tuple entry = (self, None)
        cdef bint has_failed
        for element in deliveries:
            if type(element) is not Delivery:
                return False
            if (<Delivery>element).batch.loop is not self.loop:
                raise ValueError("gather: a delivery belongs to an event loop other than the running one")
        for delivery in deliveries:
            if not has_ended(delivery):
                self.pending += 1
                add_callback(delivery, entry)
            else:
                has_failed = retrieve_outcome(delivery)
                if has_failed and self.failed is None and not self.returns_exceptions:
                    self.failed = delivery
        if self.pending and self.failed is None:
            self.waiter = self.loop.create_future()
        return True

    def cancel(self, list deliveries, msg=None):
        """Cancel the deliveries that have no result, unless the wait ended before it was cancelled."""
        cdef Delivery delivery
        cdef bint was_waiting = self.waiter.cancelled()
        self.waiter = self.failed = None
        if was_waiting:
            for delivery in deliveries:
                delivery.cancel(msg)

    def results(self, list deliveries):
        """Return the results of all deliveries, or raise the error of the one that failed first."""
        cdef Delivery delivery = self.failed
        cdef Batch batch
        cdef int index
        cdef list results = []
        self.waiter = self.failed = None       # the pending deliveries still refer to this object
        if delivery is not None:
            return delivery.result()
        for delivery in deliveries:
            if delivery.state == CANCELLED:
                results.append(delivery._make_cancelled_error())
                continue
            batch = batch_of(delivery, &index)
            error = error_of(delivery, batch, index)
            results.append(metadata_of(delivery, batch, index) if error is None else error)
        return results


cdef int note_gathered(Gathering gathering, Delivery delivery) except -1:
    """Count a delivery that has ended. End the wait if it is the last one or the first to fail."""
    cdef bint has_failed = retrieve_outcome(delivery)
    gathering.pending -= 1
    if gathering.waiter is None or gathering.failed is not None:
        return 0                   # the wait has ended
    if has_failed and not gathering.returns_exceptions:
        gathering.failed = delivery
    elif gathering.pending:
        return 0
    if not gathering.waiter.done():
        gathering.waiter.set_result(None)
    return 0


cdef inline bint retrieve_outcome(Delivery delivery) except -1:
    """Mark the result as retrieved. Return whether the record failed or the delivery was cancelled."""
    cdef int index
    cdef Batch batch
    if delivery.state == CANCELLED:
        return True
    batch = batch_of(delivery, &index)
    return retrieve(delivery, batch, index) is not None
