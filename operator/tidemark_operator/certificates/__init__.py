"""Certificates of one cluster: its own CA, a certificate per node, operator and client, and their replacement.

X1  A certificate names one identity, in one URI; nodes and operators may serve with theirs, clients and admins not.
X2  Of a CA that is replaced there are two for a while, and everybody trusts both before anybody shows a certificate of
    the new one; the old one goes when nobody shows one of its certificates any more.
X3  So at every moment, whichever files each process has loaded by now, any two of them can talk.
X4  The next step is only taken once every process that can say so says that it has loaded the last one's files.
X5  A certificate is replaced `renew_before` its end, never outlives its CA, and a CA is replaced early enough that
    certificates of full length fit into its rest.

`rotation` decides (pure), or `takeover` where somebody else issues; `authority` is the one door to the cryptography
library, `files` stores, `keeper` acts.
Stays out: gRPC (wire), what a certificate allows (wire's `identity`).
"""
