"""Providers of tokens for `sasl_oauth_token_provider`: an OpenID provider's, AWS's, Google's and Azure's."""

from aioproducer.security.token_providers import (
    AzureTokenProvider,
    GcpTokenProvider,
    MskIamTokenProvider,
    OidcTokenProvider,
)

__all__ = ["AzureTokenProvider", "GcpTokenProvider", "MskIamTokenProvider", "OidcTokenProvider"]
