"""Tests of the losses that Spark's status store lists: executors, and attempts of tasks."""

from __future__ import annotations

import time
from types import SimpleNamespace

from py4j.protocol import Py4JError

from aioproducer.spark.losses import ExecutorLosses


def option(value=None):
    return SimpleNamespace(isDefined=lambda: value is not None, get=lambda: value)


def sequence(*elements):
    return SimpleNamespace(size=lambda: len(elements), apply=lambda number: elements[number])


def executor(name, removed=None, reason=None):
    date = None if removed is None else SimpleNamespace(getTime=lambda: removed * 1000)
    return SimpleNamespace(
        id=lambda: name,
        hostPort=lambda: "a:1",
        removeTime=lambda: option(date),
        removeReason=lambda: option(reason),
    )


def task(index, attempt, error=None):
    return SimpleNamespace(
        index=lambda: index,
        attempt=lambda: attempt,
        executorId=lambda: "1",
        host=lambda: "a",
        errorMessage=lambda: option(error),
    )


def session(jobs, executors=(), stages=None, error=None):
    """Return a session with these jobs, each of which has the stages of `stages`: {(stage, attempt): tasks}."""

    def task_list(stage, attempt, most):
        return sequence(*(stages or {}).get((stage, attempt), ()))

    def status_store():
        if error is not None:
            raise error
        return SimpleNamespace(executorList=lambda only_active: sequence(*executors), taskList=task_list)

    tracker = SimpleNamespace(
        getJobIdsForGroup=lambda group: list(jobs[group]),
        getJobInfo=lambda job: SimpleNamespace(stageIds=[job * 10]),
    )
    spark_context = SimpleNamespace(
        statusTracker=lambda: tracker,
        _jsc=SimpleNamespace(sc=lambda: SimpleNamespace(statusStore=status_store)),
    )
    return SimpleNamespace(sparkContext=spark_context)


def test_executors_that_were_lost_since_then_are_listed_with_the_reason():
    now = time.time()
    executors = [
        executor("0"),
        executor("1", now + 1, "Command exited with code 137\nand more"),
        executor("2", now - 60, "earlier"),
        executor("3", now + 1),
    ]

    assert ExecutorLosses(session({"g": []}, executors), "g").losses() == [
        "executor 1 on a:1 was lost: Command exited with code 137",
        "executor 3 on a:1 was lost: Spark gives no reason",
    ]


def test_failed_tasks_of_new_jobs_are_listed_in_all_attempts_of_their_stages():
    jobs = {"g": [1]}
    stages = {
        (10, 0): [task(0, 0, "of an earlier job")],
        (20, 0): [task(0, 0), task(1, 0, "FetchFailed(BlockManagerId(1, a, 7))"), task(2, 0, "the same")],
        (20, 1): [task(1, 0, "ExecutorLostFailure (executor 1 exited)\nat line 1"), task(2, 0, "the same")],
    }
    watch = ExecutorLosses(session(jobs, stages=stages), "g")
    jobs["g"].append(2)

    assert watch.losses() == [
        "task 1.0 on executor 1 (a) failed: FetchFailed(BlockManagerId(1, a, 7))",
        "task 2.0 on executor 1 (a) failed: the same",
        "task 1.0 on executor 1 (a) failed: ExecutorLostFailure (executor 1 exited)",
    ]


def test_a_session_of_spark_connect_has_no_list_of_losses():
    assert ExecutorLosses(SimpleNamespace(), "g").losses() == []


def test_a_store_that_cannot_be_read_is_reported():
    watch = ExecutorLosses(session({"g": []}, error=Py4JError("no such method\nat line 1")), "g")

    assert watch.losses() == ["the losses can't be read: no such method"]
