"""Random faults on random workloads in virtual time, judged by the oracle; and planted bugs that it must find.

A failure names the command that replays it; `make soak` plays as many runs as you like."""

from __future__ import annotations

import gc
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aioproducer import TopicPartition
from aioproducer.errors import BrokerError, DeliveryError, DeliveryTimeoutError
from aioproducer.observe.java_metrics import points
from aioproducer.observe.snapshots import MetricsSnapshot
from aioproducer.sending import metrics_push
from tests.campaigns.simulation import faults, planted, planted_connections
from tests.campaigns.simulation.history import Ended, History, Sent, SimulatedTransaction, Told
from tests.campaigns.simulation.oracle import RULES, Logs, no_gap_is_in_the_log, verdict
from tests.campaigns.simulation.plan import (
    ACKS_0,
    ACKS_1,
    IDEMPOTENT,
    KINDS,
    SHORT_IDLE_TIME,
    V1,
    V2,
    plan,
)
from tests.campaigns.simulation.planted import BUGS
from tests.campaigns.simulation.run import Result, run
from tests.campaigns.simulation.soak import Tally, play, report
from tests.campaigns.simulation.unseen import UNSEEN
from tests.campaigns.workers import started_workers

pytestmark = pytest.mark.slow

PLANTED = (planted, planted_connections)
"""The modules that register their bugs when they are imported."""

SEEDS = 12
"""Seeds per workload in every test run."""

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.promise(
    "Simulation and fuzzing", "under any schedule of faults, every result that a sender gets is true"
)
@pytest.mark.promise(
    "Simulation and fuzzing",
    "no request of an old epoch is in flight for a partition that gets a batch of the next one (invariant 4)",
)
@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
@pytest.mark.parametrize("kind", KINDS)
def test_every_promise_is_kept_under_random_faults(kind, seed):
    result = run(plan(kind, seed))

    assert not result.broken, str(result)


@pytest.mark.promise(
    "Simulation and fuzzing",
    "with transactions v1, neither a late copy of an offset commit nor a successor that begins before an "
    "end request is answered changes the other transaction (invariant 13)",
)
@pytest.mark.parametrize("name", faults.KINDS)
def test_every_promise_is_kept_under_one_kind_of_fault(name):
    fired = 0
    for kind in V1, V2, IDEMPOTENT, ACKS_1, ACKS_0:
        if kind not in (V1, V2) and name in faults.TRANSACTIONAL:
            continue
        result = run(plan(kind, 1, (name,)))
        assert not result.broken, f"{result} (of {name} alone)"
        fired += result.history.fired[name]

    assert fired, "this kind of fault never occurred"


@pytest.mark.promise(
    "Simulation and fuzzing", "under any schedule of faults, every result that a sender gets is true"
)
@pytest.mark.promise(
    "Simulation and fuzzing",
    "random schedules find each planted bug, or it is listed with the reason and the test that finds it",
)
@pytest.mark.promise(
    "Simulation and fuzzing",
    "no request of an old epoch is in flight for a partition that gets a batch of the next one (invariant 4)",
)
@pytest.mark.promise(
    "Simulation and fuzzing",
    "with transactions v1, neither a late copy of an offset commit nor a successor that begins before an "
    "end request is answered changes the other transaction (invariant 13)",
)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_oracle_finds_the_planted_bug(bug):
    convicted = bug.convicted_by()

    assert convicted is not None, f"not found with {bug.seeds} seeds"


def test_one_run_in_seven_is_undisturbed():
    """Such a run has no fault that could excuse a failure."""
    for kind in KINDS:
        undisturbed = [seed for seed in range(1, 501) if not plan(kind, seed).is_disturbed]

        assert len(undisturbed) / 500 > 0.13, kind


def test_records_that_are_sent_one_by_one_have_enough_time_in_an_undisturbed_run():
    """Four tasks send 480 records at once to one partition, each in a batch of its own, with one request in flight.
    With a delivery timeout of 106 ms, the last records would expire in the queue."""
    crowded = plan(ACKS_1, 83011522)

    result = run(crowded)

    assert not crowded.is_disturbed
    assert crowded.settings["batch_size"] < crowded.sizes[1]
    assert not result.broken, str(result)


@pytest.mark.promise(
    "Simulation and fuzzing",
    "schedules draw `enable_gapless_order` and `enable_endless_retries`, and the oracle judges what they "
    "promise",
)
def test_the_stricter_settings_are_drawn_where_they_are_allowed():
    for kind in KINDS:
        drawn = [plan(kind, seed).settings for seed in range(1, 501)]
        gapless = sum(settings.get("enable_gapless_order", False) for settings in drawn)
        endless = sum(settings.get("enable_endless_retries", False) for settings in drawn)

        assert (gapless > 80) is (gapless > 0) is (kind in (IDEMPOTENT, V1, V2)), (kind, gapless)
        assert (endless > 80) is (endless > 0) is (kind == IDEMPOTENT), (kind, endless)


def test_connections_are_closed_while_idle_in_one_plan_of_five():
    for kind in KINDS:
        drawn = [chosen for seed in range(1, 501) if (chosen := plan(kind, seed)).idle]
        limits = [chosen.settings["connections_max_idle_ms"] for chosen in drawn]

        assert all(1000 * chosen.idle > limit for chosen, limit in zip(drawn, limits, strict=True)), kind
        assert 75 < len(limits) < 125, kind
        assert 0.2 < limits.count(SHORT_IDLE_TIME) / len(limits) < 0.45, kind


def test_one_cluster_in_four_is_upgraded_to_transactions_v2():
    drawn = [plan(kind, seed).upgraded_at is not None for kind in KINDS for seed in range(1, 501)]

    assert 75 < sum(drawn) < 150
    assert not any(drawn[:-500])  # V2 is the last of KINDS


@pytest.mark.promise(
    "Simulation and fuzzing",
    "random schedules find each planted bug, or it is listed with the reason and the test that finds it",
)
@pytest.mark.parametrize("bug", UNSEEN)
def test_each_bug_that_random_schedules_miss_has_a_test(bug):
    _, module, test = UNSEEN[bug]
    source = (ROOT / "tests" / f"{module}.py").read_text()

    assert re.search(rf"def {test}\(", source), f"{bug}: {module} has no {test}"
    assert bug not in {planted.name for planted in BUGS}


def test_every_rule_is_needed():
    """Each rule reports something about an invented run that no other rule reports."""
    assert len({rule.__name__ for rule in RULES}) == len(RULES)
    history = History("idempotent", 0)
    transaction = SimulatedTransaction(0, Ended.COMMITTED, offsets={TopicPartition("in", 0): 7})
    history.transactions += [transaction, SimulatedTransaction(1, Ended.UNKNOWN)]
    history.sent = [
        Sent(0, "p", 0, "t", 0, None, 0, 1, 2, buffered_at=0, ended_at=1, told=Told.ACKNOWLEDGED, offset=3),
        Sent(
            1, "p", 0, "t", 0, transaction, 0, 1, 2, buffered_at=5, ended_at=9, told=Told.UNKNOWN, deadline=20
        ),
        Sent(2, "p", 0, "t", 0, None, 0, 1, 2, buffered_at=0),
    ]
    history.is_disturbed = False
    history.is_endless = True
    history.aborted_successors.append("of a made-up producer")
    history.sent[1].error = DeliveryTimeoutError("its time is over", attempts=1, last_error=None)

    rules = {sentence.partition(":")[0] for sentence in verdict(history)}

    assert rules == {
        "every_acknowledged_record_is_in_the_log",
        "every_call_and_delivery_ends_in_time",
        "nothing_times_out_early",
        "nothing_in_doubt_is_given_up",
        "no_producer_aborts_its_successors_transaction",
        "nothing_fails_for_no_reason",
        "no_transaction_fails_for_no_reason",
        "transactions_are_visible_as_told",
        "the_group_is_where_the_last_commit_left_it",
    }


def timed_out(**more):
    """A record that expired while it was in doubt, two seconds late."""
    error = DeliveryTimeoutError("its time is over", attempts=1, last_error=None)
    return Sent(
        **{
            "number": 0,
            "producer": "p",
            "task": 0,
            "topic": "t",
            "partition": 0,
            "transaction": None,
            "asked_at": 0,
            "call_due": 1,
            "due": 2,
            "buffered_at": 0,
            "ended_at": 4,
            "told": Told.UNKNOWN,
            "error": error,
        }
        | more
    )


def verdict_on(*sent, **more):
    history = History("idempotent", 0, sent=list(sent), **more)
    return {sentence.partition(":")[0] for sentence in verdict(history)}


@pytest.mark.promise(
    "Simulation and fuzzing",
    "schedules draw `enable_gapless_order` and `enable_endless_retries`, and the oracle judges what they "
    "promise",
)
def test_with_endless_retries_only_an_answer_or_the_user_ends_a_record_in_doubt():
    refused = DeliveryError("refused", attempts=2, last_error=BrokerError("OUT_OF_ORDER_SEQUENCE_NUMBER"))
    broken = DeliveryError("broken", attempts=2, last_error=OSError())
    unsent = DeliveryTimeoutError("its time is over", attempts=0, last_error=None)
    endless = {"is_endless": True, "closing_at": 5.0}

    assert verdict_on(timed_out(), **endless) == {"nothing_in_doubt_is_given_up"}
    assert verdict_on(timed_out(error=broken), **endless) == {"nothing_in_doubt_is_given_up"}
    assert verdict_on(timed_out(error=refused), **endless) == set()
    assert verdict_on(timed_out(ended_at=5.0), **endless) == set()
    assert verdict_on(timed_out(own_due=4, due=4), **endless) == set()
    for in_no_doubt in {"told": Told.NOT_PERSISTED, "error": unsent}, {"own_due": 2}:
        assert verdict_on(timed_out(**in_no_doubt), **endless) == {"every_call_and_delivery_ends_in_time"}
    answered = {"told": Told.ACKNOWLEDGED, "error": None, "offset": None, "own_due": 5}
    assert "every_call_and_delivery_ends_in_time" not in verdict_on(timed_out(**answered), **endless)
    assert verdict_on(timed_out()) == {"every_call_and_delivery_ends_in_time"}


@pytest.mark.promise(
    "Simulation and fuzzing",
    "schedules draw `enable_gapless_order` and `enable_endless_retries`, and the oracle judges what they "
    "promise",
)
@pytest.mark.parametrize(
    ("failed", "later", "is_gap"),
    [
        ({}, {}, True),
        ({"told": Told.NOT_PERSISTED}, {}, True),
        ({}, {"task": 1, "asked_at": 0.5}, True),
        ({}, {"task": 1, "asked_at": 0}, False),  # it is not known which of the two came first
        ({}, {"buffered_at": 4}, False),
        ({}, {"partition": 1}, False),
        ({}, {"producer": "q"}, False),
        ({"told": Told.GAVE_UP_ASKING}, {}, False),
        ({"number": 1}, {"number": 0}, False),
    ],
    ids=str,
)
def test_in_gapless_order_a_gap_is_before_a_record_that_was_accepted_behind_a_failed_one(
    failed, later, is_gap
):
    behind = {"number": 1, "asked_at": 0.5, "buffered_at": 0.5, "told": Told.ACKNOWLEDGED, "error": None}
    sent = [timed_out(**failed), timed_out(**behind | later)]
    history = History("idempotent", 0, sent=sent, is_gapless=True)
    logs = Logs(history)
    logs.numbers[sent[1].number] = 1

    assert bool(list(no_gap_is_in_the_log(history, logs))) is is_gap
    logs.numbers[sent[0].number] = 1
    assert not list(no_gap_is_in_the_log(history, logs)), "there is no gap"


def test_a_failure_names_the_command_that_replays_it():
    result = Result(plan("idempotent", 7), History("idempotent", 7), ["something was broken"])

    assert "python -m tests.campaigns.simulation.run 'idempotent' 7" in str(result)
    assert "something was broken" in str(result)
    assert "faults:" in str(result)


def test_one_command_replays_a_seed():
    done = subprocess.run(
        [sys.executable, "-m", "tests.campaigns.simulation.run", "idempotent", "7"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert run(plan("idempotent", 7)).history.digest in done.stdout


def test_a_soak_counts_what_happened_and_names_the_faults_that_never_fired():
    tally = play(("idempotent",), range(1, 6))

    text = report(tally, 1.0)

    assert tally.schedules == 5
    assert f"gapless order: {tally.gapless} schedules, endless retries: {tally.endless}" in text
    assert f"{tally.told['acknowledged']} acknowledged" in text
    assert "never fired: " in text
    assert "coordinator moved" in text.partition("never fired: ")[2]
    assert "findings: 0" in text
    other = Tally()
    other.add(tally)
    assert report(other, 1.0) == text


def test_lost_receipts_of_one_run_are_not_reported_in_a_later_one(caplog):
    result = run(plan(IDEMPOTENT, 305_807))  # one batch contains records of a lost receipt and of a kept one
    assert result.history.lost_receipts
    del result
    gc.collect()
    assert caplog.messages == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("command", "counted"),
    [(["soak", "--schedules", "1000000"], "schedules a minute"), (["play_catalogue"], "plays: ")],
)
def test_a_campaign_reports_when_it_is_stopped_and_leaves_no_process(command, counted, how):
    with subprocess.Popen(
        [sys.executable, "-m", f"tests.campaigns.simulation.{command[0]}", *command[1:]],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as campaign:
        assert campaign.stderr is not None
        assert campaign.stderr.readline(), "no progress was reported"
        campaign.send_signal(how)
        out, error = campaign.communicate(timeout=60)  # returns when the last process has closed its output

    assert counted in out
    assert "findings:" in out
    assert "stopping once" in error
    assert "Traceback" not in error


def test_a_signal_between_two_results_raises_nothing_and_stops_the_workers():
    """A KeyboardInterrupt just after a future's lock was taken would leave the lock taken and the pool waiting."""
    before = signal.getsignal(signal.SIGINT)
    with started_workers(1) as workers:
        found = []
        for squared in workers.results(pow, ((number, 2) for number in range(100))):
            found.append(squared)
            if squared == 9:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGTERM)

    assert found == [0, 1, 4, 9]
    assert workers.is_stopping
    assert signal.getsignal(signal.SIGINT) is before


def test_a_record_in_doubt_may_time_out_when_its_first_deadline_has_passed():
    """With endless retries, a batch in doubt gets a later deadline. If the broker then rejects it, the result is known,
    and the time-out is not early."""
    result = run(plan(IDEMPOTENT, 20276855))

    late = [sent for sent in result.history.sent if isinstance(sent.error, DeliveryTimeoutError)]
    assert late
    assert all(sent.ended_at >= min(sent.own_due, sent.deadline) for sent in late)
    assert result.broken == []


@pytest.mark.promise(
    "Observability", "metrics that brokers collect count each acknowledged record once (KIP-714)"
)
def test_records_that_are_counted_twice_are_noticed(monkeypatch):
    def since_the_start(now, before, wants, **more):
        return points(now, MetricsSnapshot(), wants, **more)

    monkeypatch.setattr(metrics_push, "points", since_the_start)

    found = [sentence for seed in range(1, 31) for sentence in run(plan(IDEMPOTENT, seed)).broken]

    assert found
    assert all("pushed" in sentence for sentence in found)


def test_metrics_are_collected_in_some_runs():
    collecting = [kind for kind in KINDS for seed in range(1, 101) if plan(kind, seed).collects_metrics]

    assert 0.2 < len(collecting) / (100 * len(KINDS)) < 0.4
