module tidemark.dev/tests/porcupine

go 1.26.0

tool tidemark.dev/tests/porcupine/judge

require github.com/anishathalye/porcupine v1.3.1
