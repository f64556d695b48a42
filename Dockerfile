# The operator: no torch, no worker, no shell (dev/operator_root.py). Everything comes from the lock file, so the image
# holds what was tested.
# `make images` builds it; by hand, with docker or podman:
#   docker build -t cleanrl-operator:0.1.0 .
ARG PYTHON=python:3.11-slim

FROM ${PYTHON} AS build
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
    UV_PROJECT_ENVIRONMENT=/opt/venv UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never
RUN pip install --no-cache-dir --disable-pip-version-check --root-user-action=ignore uv==0.13.7
WORKDIR /src
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN uv sync --frozen --no-dev --extra operator --no-install-project \
    && UV_PROJECT_ENVIRONMENT=/opt/tools uv sync --frozen --only-group images --no-install-project
COPY cleanrl_protocol cleanrl_protocol
COPY cleanrl_worker cleanrl_worker
COPY devcluster devcluster
COPY operator operator
# One distribution holds both sides; the worker's half has no business here. Read-only containers can't keep bytecode.
RUN uv build --wheel --no-build-isolation --python /opt/tools -o /dist . \
    && uv pip install --python /opt/venv --no-deps --compile-bytecode /dist/*.whl \
    && rm -rf /opt/venv/lib/python3*/site-packages/cleanrl_worker /opt/venv/lib/python3*/site-packages/devcluster \
        /opt/venv/bin/cleanrl-worker /opt/venv/bin/devcluster \
    && mkdir -p /image/usr/share/cleanrl \
    && /opt/tools/bin/cyclonedx-py environment --output-reproducible --of JSON -o /image/usr/share/cleanrl/sbom.cdx.json /opt/venv
COPY dev/operator_root.py dev/
RUN python dev/operator_root.py /opt/venv /image

FROM scratch
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG SOURCE=""
LABEL org.opencontainers.image.title="cleanrl-operator" \
      org.opencontainers.image.description="Reinforcement learning runs as Kubernetes resources: the operator" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}"
COPY --from=build /image /
ENV PATH=/opt/venv/bin HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
# For docker and podman; Kubernetes has the chart's probes instead.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/healthz', timeout=3)"]
ENTRYPOINT ["cleanrl-operator"]
