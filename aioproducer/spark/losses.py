"""The executors and tasks that Spark has lost, and the reasons, as read from Spark's status store.

Only the user's own process can read the store: the tasks, and the processes that plan and commit, have no access."""

from __future__ import annotations

import time
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

LONGEST_REASON = 300
"""The maximum length of a reason in characters; the stack trace after it is left out."""
MOST_TASKS = 1000
"""The maximum number of tasks per stage attempt that are examined."""


class ExecutorLosses:
    """Lists losses since it was created. The list is empty with Spark Connect, which cannot read the status store."""

    def __init__(self, spark: SparkSession, group: str | None) -> None:
        """Start watching.

        Args:
            spark: the session that writes.
            group: the job group of the write (for a stream, its run id); None if the write has no group.
        """
        self._context: Any = getattr(spark, "sparkContext", None)
        self._group = group
        self._since = time.time()
        self._before = set(self._jobs())

    def losses(self) -> list[str]:
        """Return a sentence for each lost executor and for each failed attempt of a task."""
        if self._context is None:
            return []
        try:
            store = self._context._jsc.sc().statusStore()
            return list(dict.fromkeys([*self._executors(store), *self._tasks(store)]))
        except Py4JError as error:  # the store is not part of Spark's public API
            return [f"the losses can't be read: {_first_line(str(error))}"]

    def _jobs(self) -> list[int]:
        if self._context is None:
            return []
        return list(self._context.statusTracker().getJobIdsForGroup(self._group))

    def _executors(self, store: Any) -> list[str]:
        found = []
        for executor in _each(store.executorList(False)):
            removed = executor.removeTime()
            if removed.isDefined() and removed.get().getTime() / 1000 >= self._since:
                reason = executor.removeReason()
                text = _first_line(str(reason.get())) if reason.isDefined() else "Spark gives no reason"
                found.append(f"executor {executor.id()} on {executor.hostPort()} was lost: {text}")
        return found

    def _tasks(self, store: Any) -> list[str]:
        found = []
        for job in sorted(set(self._jobs()) - self._before):
            info = self._context.statusTracker().getJobInfo(job)
            for stage in [] if info is None else info.stageIds:
                attempt = 0
                # The attempts of a stage are numbered without gaps; a number after the last one has no tasks.
                while tasks := _each(store.taskList(stage, attempt, MOST_TASKS)):
                    for task in tasks:
                        message = task.errorMessage()
                        if message.isDefined():
                            found.append(
                                f"task {task.index()}.{task.attempt()} on executor {task.executorId()} "
                                f"({task.host()}) failed: {_first_line(str(message.get()))}"
                            )
                    attempt += 1
        return found


def _each(found: Any) -> list[Any]:
    """Return the elements of a Scala sequence."""
    return [found.apply(number) for number in range(found.size())]


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:LONGEST_REASON]
