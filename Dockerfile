# The operator: no torch, no worker. Built from the lock file, so the image holds what was tested.
#   docker build -t cleanrl-operator .
ARG PYTHON=python:3.11-slim

FROM ${PYTHON} AS build
RUN pip install --no-cache-dir uv==0.13.7
WORKDIR /src
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN UV_PROJECT_ENVIRONMENT=/opt/venv uv sync --frozen --no-dev --extra operator --no-install-project
COPY cleanrl_protocol cleanrl_protocol
COPY cleanrl_worker cleanrl_worker
COPY devcluster devcluster
COPY operator operator
RUN UV_PROJECT_ENVIRONMENT=/opt/venv UV_COMPILE_BYTECODE=1 uv sync --frozen --no-dev --extra operator --no-editable \
    && rm -rf /opt/venv/lib/python3*/site-packages/cleanrl_worker /opt/venv/lib/python3*/site-packages/devcluster

FROM ${PYTHON}
LABEL org.opencontainers.image.title="cleanrl-operator" org.opencontainers.image.licenses="MIT"
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1
USER 65532:65532
HEALTHCHECK CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/healthz', timeout=3)"]
ENTRYPOINT ["cleanrl-operator"]
