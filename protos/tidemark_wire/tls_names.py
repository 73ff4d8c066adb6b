"""Environment variables that name the files of a certificate: the command line reads them before gRPC is loaded.

Stays out: reading the files (tls).
"""

ENVIRONMENT = {"ca": "TIDEMARK_TLS_CA", "cert": "TIDEMARK_TLS_CERT", "key": "TIDEMARK_TLS_KEY"}
SERVER_NAME_VARIABLE = "TIDEMARK_TLS_SERVER_NAME"
