"""Token providers for `sasl_oauth_token_provider`: OpenID Connect (OIDC), Amazon MSK, Google Cloud and Azure."""

from aioproducer.security.token_providers import (
    AzureTokenProvider,
    GcpTokenProvider,
    MskIamTokenProvider,
    OidcTokenProvider,
)

__all__ = ["AzureTokenProvider", "GcpTokenProvider", "MskIamTokenProvider", "OidcTokenProvider"]
