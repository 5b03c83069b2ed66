"""The plan of a seed: the cluster, the producer's settings, the workload, and which faults strike when.

Everything is chosen here before the run starts, so a plan can be printed to explain a failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tests.campaigns.simulation.faults import NEEDS_RIVAL, SCRIPTED, SUDDEN, TRANSACTIONAL

IDEMPOTENT, ACKS_1, ACKS_0, V1, V2 = "idempotent", "acks=1", "acks=0", "transactions v1", "transactions v2"
KINDS = (IDEMPOTENT, ACKS_1, ACKS_0, V1, V2)
"""The workloads; each seed means a different run for each of them."""

KIND_SETTINGS: dict[str, dict[str, Any]] = {
    IDEMPOTENT: {},
    ACKS_1: {"acks": 1, "enable_idempotence": False, "max_in_flight_requests_per_connection": 1},
    ACKS_0: {"acks": 0, "enable_idempotence": False},
    V1: {"transactional_id": "the-id"},
    V2: {"transactional_id": "the-id"},
}
"""The settings that make a producer of each kind."""

PLACEMENTS = ("explicit", "by key", "without key")
CLOSES = ("drain", "drain", "drain", "hurry", "at once")

UNDISTURBED = 0.15
"""The share of plans without any fault and without impatient users: every failure there is a bug."""
STRICT = 0.25
"""The share of plans with gapless order, and of those with endless retries, where the producer allows them."""
COLLECTING = 0.3
"""The share of plans whose cluster collects the metrics of producers (KIP-714)."""
IDLE = 0.2
"""The share of plans whose connections are closed while idle."""
SOON_IDLE = 1 / 3
"""The share of plans with SHORT_IDLE_TIME among these."""
SLOWEST_TRANSACTION = 30_000
"""The maximum time in ms that users in an undisturbed run take for a transaction."""
ROUND_TRIP = 2
"""Milliseconds within which the simulated network carries a request and its answer, even in several pieces."""
SHORT_IDLE_TIME = 0.7
"""Milliseconds, about as long as the simulated network takes for a request and its answer. A connection is closed soon
after the last answer, but not before it."""


@dataclass(frozen=True)
class Plan:
    """One run."""

    kind: str
    seed: int
    brokers: int
    partitions: int
    versions: str
    min_insync_replicas: int
    settings: dict[str, Any]
    tasks: int
    records: int
    """The number of records per task; with transactions, per task and transaction."""
    pause: float
    """The longest pause of a task between two records, in seconds."""
    placement: str
    sizes: tuple[int, int]
    close: str
    close_at: float | None
    """Seconds after the start at which the producer is closed, even with work in progress."""
    cancels: float
    """The probability that a call or a delivery is cancelled, or that a delivery has its own timeout."""
    faults: list[tuple[float, str]] = field(default_factory=list)
    """(seconds after the start, kind)."""
    transactions: int = 0
    idle: float = 0.0
    """Seconds that users sometimes wait between two records or two transactions, long enough for every connection to
    be closed."""
    upgraded_at: float | None = None
    """When a cluster with transactions v1 finalizes v2; None if it has had v2 from the beginning."""
    rival_at: float | None = None
    """Seconds after the start at which a second producer with the same transactional id begins; None for no such
    producer."""
    log_append_time: bool = False
    """True if the brokers set the records' timestamps."""
    collects_metrics: bool = False
    """True if the brokers request metrics."""
    group: str = "the-group"
    """The consumer group; its coordinator is rarely the broker that coordinates the transactions."""
    transactional_id: str = "the-id"
    transaction_timeout_ms: int = 60_000

    @property
    def is_transactional(self) -> bool:
        return self.kind in (V1, V2)

    @property
    def is_disturbed(self) -> bool:
        """True if there are faults, or if users are impatient or slower than a transaction may be."""
        return bool(
            self.faults
            or self.cancels
            or self.close != "drain"
            or self.close_at is not None
            or self.rival_at is not None
            or self.upgraded_at is not None
            or self.transaction_timeout_ms < SLOWEST_TRANSACTION
        )

    @property
    def recovers(self) -> bool:
        """True if the faults end before the producer is closed, so that it has to work again."""
        return (
            self.close == "drain" and self.close_at is None and self.rival_at is None and self.seed % 2 == 1
        )

    @property
    def acks(self) -> int | str:
        return {ACKS_1: 1, ACKS_0: 0}.get(self.kind, "all")

    def random(self, purpose: str) -> Random:
        """Return random numbers that are independent of other purposes."""
        return Random(f"{self.kind}/{self.seed}/{purpose}")

    def __str__(self) -> str:
        faults = "".join(f"\n  {at:7.3f} s  {name}" for at, name in self.faults) or " none"
        return (
            f"{self.kind}, seed {self.seed}: {self.brokers} brokers like {self.versions}, "
            f"{self.partitions} partitions, "
            f"{self.tasks} tasks of {self.records} records {self.placement}, {self.sizes} bytes, "
            f"{self.transactions} transactions, idle for {self.idle:g} s, rival at {self.rival_at}, "
            f"upgraded at {self.upgraded_at}, "
            f"close {self.close} at {self.close_at}\n"
            f"settings: {self.settings}\nfaults:{faults}"
        )


def plan(kind: str, seed: int, among: Sequence[str] = ()) -> Plan:
    """Return the plan of a seed. With `among`, it has many faults of only these kinds."""
    random = Random(f"{kind}/{seed}/plan")
    is_transactional = kind in (V1, V2)
    brokers = random.choice([1, 2, 3, 3, 3])
    horizon = random.choice([0.5, 2.0, 6.0])
    settings = _settings(random, kind)
    rival_at = random.uniform(0, horizon) if is_transactional and random.random() < 0.2 else None
    tables = [SCRIPTED, SUDDEN, *([TRANSACTIONAL, TRANSACTIONAL] if is_transactional else [])]
    # A few kinds, several times each, because their combinations matter.
    kinds = [random.choice(list(random.choice(tables))) for _ in range(random.randint(1, 5))]
    count = random.choice([0, 2, 4, 8, 16, 16])
    if among:
        kinds, count = list(among), 16
    if NEEDS_RIVAL in kinds and rival_at is None:
        rival_at = horizon
    haste = random.choice([0.0, 0.5, 2.0, 2.0])
    last = horizon if haste else 0.1
    faults = sorted(
        (round(max(random.uniform(-last / 3, last), 0.0), 3), random.choice(kinds)) for _ in range(count)
    )
    records = random.choice([1, 3, 10, 40]) if is_transactional else random.choice([5, 30, 120])
    chosen = Plan(
        kind=kind,
        seed=seed,
        brokers=brokers,
        partitions=random.choice([1, 1, 2, 5]),
        versions=_versions(random, kind),
        min_insync_replicas=random.choice([1, min(2, brokers)]),
        settings=settings,
        tasks=random.choice([1, 1, 2, 4]),
        records=records,
        pause=horizon / records * haste,
        placement=random.choice(PLACEMENTS),
        sizes=random.choice([(10, 20), (10, 300), (500, 3000), (10, 9000)]),
        close=random.choice(CLOSES),
        close_at=random.uniform(0.1, horizon) if random.random() < 0.25 else None,
        cancels=random.choice([0.0, 0.0, 0.1]),
        faults=faults,
        transactions=random.randint(1, 6) if is_transactional else 0,
        rival_at=rival_at,
        log_append_time=is_transactional and Random(f"{kind}/{seed}/time").random() < 0.3,
        collects_metrics=Random(f"{kind}/{seed}/metrics").random() < COLLECTING,
        group=f"group-{seed % 8}",
        transaction_timeout_ms=settings.get("transaction_timeout_ms", 60_000),
    )
    chosen = _with_upgrade(_with_strict_settings(_with_idle_times(chosen)), horizon)
    return _undisturbed(chosen) if not among and chosen.random("calm").random() < UNDISTURBED else chosen


def _with_idle_times(plan: Plan) -> Plan:
    """In one in five plans, connections are closed while idle, and metadata refreshes don't keep them open. In a third
    of these plans, they are closed soon after the last answer."""
    random = plan.random("idle")
    if random.random() > IDLE:
        return plan
    limit: float = random.choice([300, 20_000])
    if random.random() < SOON_IDLE:
        limit = SHORT_IDLE_TIME
    settings = {**plan.settings, "connections_max_idle_ms": limit, "metadata_max_age_ms": 300_000}
    return replace(plan, settings=settings, idle=1.5 * limit / 1000)


def _with_upgrade(plan: Plan, horizon: float) -> Plan:
    """Let one in four clusters with transactions v2 begin with v1."""
    random = plan.random("upgrade")
    if plan.kind != V2 or random.random() > 0.25:
        return plan
    return replace(plan, upgraded_at=random.uniform(0, horizon))


def _with_strict_settings(plan: Plan) -> Plan:
    """Switch on the two opt-in settings, each in a quarter of the plans that allow it."""
    random = plan.random("strict")
    settings = dict(plan.settings)
    if plan.acks == "all" and random.random() < STRICT:
        settings["enable_gapless_order"] = True
    if plan.kind == IDEMPOTENT and random.random() < STRICT:
        settings["enable_endless_retries"] = True
    return replace(plan, settings=settings)


def _undisturbed(plan: Plan) -> Plan:
    """Return the same plan without faults and impatient users, and with enough time to send each record alone."""
    settings = dict(plan.settings)
    alone = settings["linger_ms"] + settings["request_timeout_ms"] + ROUND_TRIP * plan.tasks * plan.records
    settings["delivery_timeout_ms"] = max(settings["delivery_timeout_ms"], alone)
    if plan.is_transactional:
        settings["transaction_timeout_ms"] = 60_000
    return replace(
        plan,
        faults=[],
        cancels=0.0,
        close="drain",
        close_at=None,
        rival_at=None,
        upgraded_at=None,
        settings=settings,
        transaction_timeout_ms=60_000,
    )


def _versions(random: Random, kind: str) -> str:
    if kind == V2:
        return random.choice(["4.0", "4.1", "4.3"])
    if kind == V1:
        # Older brokers don't verify: a request that a frozen one reads too late opens a transaction that is never
        # ended (KAFKA-12671), whatever the producer does.
        return random.choice(["3.6", "3.7", "3.9", "4.1", "4.3"])
    return random.choice(["2.1", "2.8", "3.5", "3.9", "4.1", "4.1", "4.3"])


def _settings(random: Random, kind: str) -> dict[str, Any]:
    linger = random.choice([0, 0, 5, 50])
    request_timeout = random.choice([100, 500, 2000])
    delivery_timeout = linger + request_timeout + random.choice([1, 1, 300, 2000, 10_000])
    settings: dict[str, Any] = {
        "linger_ms": linger,
        "request_timeout_ms": request_timeout,
        "delivery_timeout_ms": delivery_timeout,
        "max_block_ms": random.choice([500, 2000, 8000]),
        "retry_backoff_ms": random.choice([1, 20, 100]),
        "retry_backoff_max_ms": random.choice([100, 1000]),
        "reconnect_backoff_ms": random.choice([1, 50]),
        "reconnect_backoff_max_ms": random.choice([50, 1000]),
        "batch_size": random.choice([1, 200, 2000, 16_384, 262_144]),
        "max_in_flight_requests_per_connection": random.choice([1, 2, 5, 5]),
        "compression_type": random.choice(["none", "none", "none", "gzip", "snappy"]),
        "buffer_memory": random.choice([20_000, 67_108_864, 67_108_864]),
        "max_request_size": random.choice([12_000, 1_048_576]),
        "metadata_max_age_ms": random.choice([200, 5000, 300_000]),
        "connections_max_idle_ms": random.choice([300, 540_000]),
        "socket_connection_setup_timeout_ms": random.choice([200, 10_000]),
    }
    settings["socket_connection_setup_timeout_max_ms"] = settings["socket_connection_setup_timeout_ms"] * 2
    if kind in (V1, V2):
        settings["transaction_timeout_ms"] = random.choice([2000, 60_000])
    return {**settings, **KIND_SETTINGS[kind]}
