"""A scripted authorizer. The handlers call it where Kafka's brokers check ACLs.

Everything that no rule denies is allowed. As with Kafka's ACLs, denying WRITE does not deny DESCRIBE, and a rule
for "*" covers every name. This module does not depend on request formats.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from aioproducer.protocol.error_codes import ErrorCode

ANONYMOUS = "User:ANONYMOUS"
"""The principal of a connection that has not authenticated."""

CLUSTER_NAME = "kafka-cluster"
"""The name by which ACLs refer to the cluster."""

WILDCARD = "*"


class Operation(Enum):
    """The operations in Kafka's AclOperation that a producer or a consumer needs."""

    ALL = "All"
    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DESCRIBE = "Describe"
    IDEMPOTENT_WRITE = "IdempotentWrite"


class ResourceType(Enum):
    """The type of resource that an operation applies to."""

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
    """A rule that denies an operation to a principal, or to every principal if `principal` is None."""

    operation: Operation
    resource_type: ResourceType
    name: str
    principal: str | None

    def covers(self, principal: str, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Return True if the rule applies to this operation."""
        return (
            self.operation in (operation, Operation.ALL)
            and self.resource_type is resource_type
            and self.name in (name, WILDCARD)
            and self.principal in (principal, None)
        )


class Authorizer:
    """The authorization rules of a cluster. A change takes effect with the next request."""

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
        """Make the brokers reject an operation.

        Args:
            operation: The operation to deny, such as `Operation.WRITE`; `Operation.ALL` denies every operation.
            topic: The topic; "*" means every topic.
            transactional_id: The transactional id, or "*".
            group: The consumer group, or "*".
            cluster: If True, deny the operation on the cluster: `Operation.IDEMPOTENT_WRITE` or `Operation.CREATE` (the
                creation of topics).
            principal: The principal to which the operation is denied, such as "User:alice"; None: all principals. A
                connection without authentication has the principal "User:ANONYMOUS".

        Returns:
            The rule; pass it to `withdraw` to remove it.

        Raises:
            ValueError: no resource or more than one is named, or the principal lacks a type prefix such as "User:".
        """
        named = {
            ResourceType.TOPIC: topic,
            ResourceType.TRANSACTIONAL_ID: transactional_id,
            ResourceType.GROUP: group,
            ResourceType.CLUSTER: CLUSTER_NAME if cluster else None,
        }
        resources = [(kind, name) for kind, name in named.items() if name is not None]
        if len(resources) != 1:
            raise ValueError("deny() takes exactly one of topic=, transactional_id=, group= and cluster=True")
        if principal is not None and ":" not in principal:
            raise ValueError(f'principal={principal!r} has no type; write "User:{principal}"')
        denial = Denial(Operation(operation), *resources[0], principal)
        self._denials.append(denial)
        return denial

    def withdraw(self, denial: Denial) -> None:
        """Remove a rule that `deny` returned. Raises ValueError if the rule is not in effect."""
        self._denials.remove(denial)

    def clear(self) -> None:
        """Remove all rules. Every operation is then allowed."""
        self._denials.clear()

    def refusal(
        self, principal: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> ErrorCode | None:
        """Return the error if this principal is denied the operation; None if it is allowed."""
        denied = any(rule.covers(principal, operation, resource_type, name) for rule in self._denials)
        return _ERRORS[resource_type] if denied else None
