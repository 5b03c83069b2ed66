"""Who may do what: a scripted authorizer, which the handlers ask where Kafka's brokers ask for ACLs.

Whatever no rule denies is allowed. As with Kafka's ACLs, to deny WRITE does not deny DESCRIBE, and a rule
for "*" covers every name. Nothing here knows what a request looks like.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from aioproducer.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from aioproducer.testing.embedded.request_context import RequestContext

ANONYMOUS = "User:ANONYMOUS"
"""The principal of a connection that has not said who it is."""

CLUSTER_NAME = "kafka-cluster"
"""There is one cluster only, and ACLs call it by this name."""

WILDCARD = "*"


class Operation(Enum):
    """What somebody wants to do: those of Kafka's AclOperation that a producer or a consumer needs."""

    ALL = "All"
    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DESCRIBE = "Describe"
    IDEMPOTENT_WRITE = "IdempotentWrite"


class ResourceType(Enum):
    """What it is done to."""

    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"
    TRANSACTIONAL_ID = "TransactionalId"


_ERRORS = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


class Denial(NamedTuple):
    """A rule: this principal, or with None any, may not do this."""

    operation: Operation
    resource_type: ResourceType
    name: str
    principal: str | None

    def covers(self, principal: str, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether the rule speaks of this."""
        return (
            self.operation in (operation, Operation.ALL)
            and self.resource_type is resource_type
            and self.name in (name, WILDCARD)
            and self.principal in (principal, None)
        )


class Authorizer:
    """The rules of a cluster. A change holds from the next request on."""

    def __init__(self) -> None:
        self._denials: list[Denial] = []

    def deny(
        self,
        operation: Operation,
        *,
        topic: str | None = None,
        transactional_id: str | None = None,
        group: str | None = None,
        cluster: bool = False,
        principal: str | None = None,
    ) -> Denial:
        """Let brokers refuse something.

        Args:
            operation: What may not be done: `Operation.WRITE`, or `Operation.ALL`.
            topic: To this topic; "*" is every topic.
            transactional_id: With this transactional id, or "*".
            group: To this consumer group, or "*".
            cluster: To the cluster: `Operation.IDEMPOTENT_WRITE` or `Operation.CREATE` (of topics).
            principal: By whom, "User:alice"; None: by anybody. A connection without authentication belongs
                to "User:ANONYMOUS".

        Returns:
            The rule, for `withdraw`.

        Raises:
            ValueError: not exactly one resource is named, or the principal is not written as Kafka does.
        """
        named = {
            ResourceType.TOPIC: topic,
            ResourceType.TRANSACTIONAL_ID: transactional_id,
            ResourceType.GROUP: group,
            ResourceType.CLUSTER: CLUSTER_NAME if cluster else None,
        }
        resources = [(kind, name) for kind, name in named.items() if name is not None]
        if len(resources) != 1:
            raise ValueError("deny() takes one of topic=, transactional_id=, group= and cluster=True")
        if principal is not None and ":" not in principal:
            raise ValueError(f'principal={principal!r} has no type; write "User:{principal}"')
        denial = Denial(Operation(operation), *resources[0], principal)
        self._denials.append(denial)
        return denial

    def withdraw(self, denial: Denial) -> None:
        """Forget a rule that `deny` returned. Raises ValueError if it is not there."""
        self._denials.remove(denial)

    def clear(self) -> None:
        """Allow everything."""
        self._denials.clear()

    def refusal(
        self, principal: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> ErrorCode | None:
        """The error for whoever may not do this; None if it is allowed."""
        denied = any(rule.covers(principal, operation, resource_type, name) for rule in self._denials)
        return _ERRORS[resource_type] if denied else None


# Rules that concern more than one resource


def producer_id_refusal(context: RequestContext, transactional_id: str | None) -> ErrorCode | None:
    """Why InitProducerId may not give this client a producer id; None if it may.

    KIP-679: who may write to any topic may write to it idempotently, too."""
    if transactional_id is not None:
        return context.denied(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    refusal = context.denied(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME)
    if refusal is None or context.release.idempotence_needs_cluster_acl:
        return refusal
    # authorizeByResourceType: only a rule for every topic leaves none to write to.
    return refusal if context.denied(Operation.WRITE, ResourceType.TOPIC, WILDCARD) else None


def creation_refusal(context: RequestContext, topic: str) -> ErrorCode | None:
    """Why this client may not create the topic; None if it may. Kafka asks for the cluster, then for the topic."""
    if context.denied(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME) is None:
        return None
    return context.denied(Operation.CREATE, ResourceType.TOPIC, topic)


def added_partition_refusals(
    context: RequestContext, topics: Mapping[str, Iterable[int]]
) -> dict[tuple[str, int], ErrorCode]:
    """What AddPartitionsToTxn answers if one of its partitions can't be added: then none of them is.

    TOPIC_AUTHORIZATION_FAILED or UNKNOWN_TOPIC_OR_PARTITION for those, OPERATION_NOT_ATTEMPTED for the rest.
    Empty if all of them can be added.
    """
    found: dict[tuple[str, int], ErrorCode] = {}
    for topic, partitions in topics.items():
        denied = context.denied(Operation.WRITE, ResourceType.TOPIC, topic)
        for partition in partitions:
            known = context.cluster.find_partition(topic, partition) is not None
            missing = ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            found[topic, partition] = denied or missing
    if not any(found.values()):
        return {}
    return {target: error or ErrorCode.OPERATION_NOT_ATTEMPTED for target, error in found.items()}
