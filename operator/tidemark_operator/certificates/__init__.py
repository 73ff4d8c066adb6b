"""Certificates of one cluster: its own CA, a certificate per node, operator and client, and their replacement.

The rules, with their reasons and tests, are in `docs/protocols/certificates.md`:

X1  A certificate names one identity
X2  Both CAs are trusted before the new one issues
X3  Any two processes can talk at every step
X4  The next step waits for processes that report old files
X5  Certificates are replaced before their end

`rotation` decides (pure), or `takeover` where another issuer is used; `authority` is the one door to the cryptography
library, `files` stores, `keeper` acts.
Stays out: gRPC (wire), what a certificate allows (wire's `identity`).
"""
