"""The handlers for SASL authentication: SaslHandshake and SaslAuthenticate.

Each handler's docstring lists the changes in each version of its API. `broker_security` implements the mechanisms.
"""

from __future__ import annotations

import asyncio

from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from aioproducer.testing.embedded.broker_security import (
    AuthenticationRefused,
    Exchange,
    SecuredSession,
    Security,
)
from aioproducer.testing.embedded.request_context import RequestContext


async def sasl_handshake(context: RequestContext, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    """Handle SaslHandshake. Version 1: the tokens follow in SaslAuthenticate (KIP-152)."""
    security, session = context.cluster.security, context.session
    if security is None or not security.mechanisms or not isinstance(session, SecuredSession):
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    error = context.refusal()
    now = asyncio.get_running_loop().time()
    if not session.may_authenticate(now):
        error = ErrorCode.ILLEGAL_SASL_STATE
    if error is None and request.mechanism not in security.mechanisms:
        error = ErrorCode.UNSUPPORTED_SASL_MECHANISM
    if error is None and session.is_authenticated and request.mechanism != session.mechanism:
        error = ErrorCode.ILLEGAL_SASL_STATE
    if error is None:
        session.mechanism, session.began_at = request.mechanism, now
        session.exchange, session.answers = security.exchange(request.mechanism), 0
    return SaslHandshakeResponse(error_code=error or ErrorCode.NONE, mechanisms=list(security.mechanisms))


async def sasl_authenticate(
    context: RequestContext, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    """Handle SaslAuthenticate. Version 1: the response contains the lifetime of the session (KIP-368)."""
    security, session = context.cluster.security, context.session
    if security is None or not isinstance(session, SecuredSession) or session.exchange is None:
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="SaslAuthenticate must follow SaslHandshake",
        )
    exchange = session.exchange
    error, message, answer = context.refusal(), "a scripted error", b""
    if error is None:
        try:
            answer = exchange.step(request.auth_bytes)
            if session.is_authenticated and exchange.principal not in ("", session.principal):
                raise AuthenticationRefused("Cannot change principals during re-authentication")
        except AuthenticationRefused as refusal:
            error, message = ErrorCode.SASL_AUTHENTICATION_FAILED, str(refusal)
    if error is not None:
        security.failures += 1
        session.is_authenticated, session.exchange = False, None
        return SaslAuthenticateResponse(error_code=error, error_message=message)
    if security.tamper is not None:
        answer = security.tamper(session.answers, answer)
    session.answers += 1
    response = SaslAuthenticateResponse(auth_bytes=answer)
    if exchange.principal:
        response.session_lifetime_ms = _authenticated(context, security, session, exchange)
    return response


def _authenticated(
    context: RequestContext, security: Security, session: SecuredSession, exchange: Exchange
) -> int:
    """Record a successful authentication and return the lifetime of its session in milliseconds."""
    session.is_authenticated, session.exchange, session.principal = True, None, exchange.principal
    security.authentications.append((exchange.principal, session.mechanism))
    lives = [life for life in (security.session_lifetime, exchange.lifetime) if life > 0]
    if not security.session_lifetime or not lives or context.version < 1:
        session.ends_at = float("inf")
        return 0
    session.ends_at = asyncio.get_running_loop().time() + min(lives) + security.session_slack
    return max(int(min(lives) * 1000), 1)
