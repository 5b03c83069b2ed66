"""Providers of tokens for `sasl_oauth_token_provider`: an OpenID provider's, and AWS's for MSK."""

from aioproducer.security.token_providers import MskIamTokenProvider, OidcTokenProvider

__all__ = ["MskIamTokenProvider", "OidcTokenProvider"]
