# Images of the operator and of nodes; docs/images.md has the commands.
#   docker build --target operator --tag REGISTRY/tidemark-operator:0.1.0 .
#   docker build --target node     --tag REGISTRY/tidemark-node:0.1.0 .

# The Python that the tests run on.  Pin it by digest where builds must be repeatable: --build-arg PYTHON_IMAGE=...@sha256:...
ARG PYTHON_IMAGE=docker.io/library/python:3.11.14-slim-bookworm


# --- the wheel of this checkout ---
FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /src
COPY images/build.txt ./
RUN pip install --no-cache-dir --only-binary=:all: --require-hashes --requirement=build.txt
COPY pyproject.toml README.md LICENSE ./
COPY core core
COPY protos protos
COPY node node
COPY operator operator
COPY client client
COPY cli cli
COPY spark spark
COPY sim sim
COPY examples/data examples/data
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .


# --- one environment per image: wheels whose hashes images/*.txt names, so that nothing is compiled; pip stays behind ---
# The etcd of the wheel is for clusters on one machine (`tidemark dev`), so no image has it.
FROM ${PYTHON_IMAGE} AS install
COPY images/node.txt images/operator.txt /
COPY --from=wheel /wheels /wheels
RUN python -m venv /opt/tidemark

FROM install AS node-environment
RUN /opt/tidemark/bin/pip install --no-cache-dir --only-binary=:all: --require-hashes --requirement=/node.txt \
    && /opt/tidemark/bin/pip install --no-cache-dir --only-binary=:all: --no-index --no-deps /wheels/*.whl \
    && /opt/tidemark/bin/pip check \
    && /opt/tidemark/bin/python -c "import tidemark_node.main" \
    && /opt/tidemark/bin/pip uninstall --yes setuptools pip

# Pods that write, read and recover metadata run the command `tidemark` of this image.
FROM install AS operator-environment
RUN /opt/tidemark/bin/pip install --no-cache-dir --only-binary=:all: --require-hashes --requirement=/operator.txt \
    && /opt/tidemark/bin/pip install --no-cache-dir --only-binary=:all: --no-index --no-deps /wheels/*.whl \
    && /opt/tidemark/bin/pip check \
    && /opt/tidemark/bin/python -c "import tidemark_operator.main, tidemark_operator.kube.main, tidemark_cli.commands" \
    && /opt/tidemark/bin/pip uninstall --yes setuptools pip


# --- what runs ---
FROM ${PYTHON_IMAGE} AS runtime
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 65532 tidemark \
    && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin tidemark
ENV PATH=/opt/tidemark/bin:${PATH} \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /tmp
USER 65532:65532
# Python handles SIGTERM itself, as the first process too.
STOPSIGNAL SIGTERM

FROM runtime AS operator
LABEL org.opencontainers.image.title="tidemark-operator" \
      org.opencontainers.image.description="The operator of Tidemark, a replicated, sharded log and document store"
COPY --from=operator-environment /opt/tidemark /opt/tidemark
EXPOSE 8080
ENTRYPOINT ["python", "-m", "tidemark_operator"]

FROM runtime AS node
LABEL org.opencontainers.image.title="tidemark-node" \
      org.opencontainers.image.description="A node of Tidemark, a replicated, sharded log and document store"
COPY --from=node-environment /opt/tidemark /opt/tidemark
EXPOSE 6690 8080
ENTRYPOINT ["python", "-m", "tidemark_node"]
