"""The token that a `sasl_oauth_token_provider` returns."""

from aioproducer.security.sasl import OAuthToken

__all__ = ["OAuthToken"]
