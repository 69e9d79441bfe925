# A callgate server or worker: `docker compose build`, then deploy/ and docs/scale.md.
# Every package is pinned and hashed by constraints.txt, and the base image by its digest, which
# `sh scripts/pin_images.sh` writes: docker build --build-arg PYTHON=python:3.12-slim-bookworm@sha256:...
# The image contains no secrets.

ARG PYTHON=python:3.12-slim-bookworm

FROM ${PYTHON} AS build
ARG PYTHON
WORKDIR /src
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
COPY constraints.txt ./
# Runtime and build dependencies are above "# for development"; from the lines below it, the image
# needs only the driver of the extra `postgres`.
RUN if [[ ! "$PYTHON" =~ @sha256:[0-9a-f]{64}$ ]]; then \
      echo "The base image $PYTHON has no digest: run sh scripts/pin_images.sh" >&2; exit 1; fi
RUN sed '/^# for development/,$d' constraints.txt > needs.txt \
 && awk '/^psycopg/ {take = 1} take {print} !/\\$/ {take = 0}' constraints.txt >> needs.txt \
 && python -m venv /opt/callgate \
 && /opt/callgate/bin/python -m pip install --no-cache-dir --require-hashes -r needs.txt
COPY pyproject.toml README.md LICENSE ./
COPY packages/tool-host-node ./packages/tool-host-node
COPY deploy/man ./deploy/man
COPY deploy/systemd ./deploy/systemd
COPY src ./src
RUN /opt/callgate/bin/python -m pip install --no-cache-dir --no-deps --no-build-isolation . \
 && /opt/callgate/bin/python -m pip uninstall --yes hatchling pip \
 && /opt/callgate/bin/callgate --version

FROM ${PYTHON}
# bubblewrap sandboxes commands; most workspaces use git.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends bubblewrap git \
 && rm -rf /var/lib/apt/lists/* \
 && groupadd --gid 10001 callgate \
 && useradd --uid 10001 --gid 10001 --home-dir /var/lib/callgate --create-home callgate \
 && install -d -o callgate -g callgate -m 0700 /var/lib/callgate/home \
 && install -d -o callgate -g callgate -m 0750 /workspace
COPY --from=build /opt/callgate /opt/callgate
COPY --chmod=0755 deploy/entrypoint.py /opt/callgate/bin/callgate-entrypoint
ENV PATH=/opt/callgate/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    CALLGATE_HOME=/var/lib/callgate/home
USER 10001:10001
WORKDIR /workspace
VOLUME ["/var/lib/callgate"]
EXPOSE 4177
STOPSIGNAL SIGTERM
# For a server; the server's list shows the health of workers (`callgate workers list`).
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
  CMD ["callgate-entrypoint", "check", "http://127.0.0.1:4177/healthz"]
ENTRYPOINT ["callgate-entrypoint"]
CMD ["serve", "--http", "0.0.0.0:4177", "--http-allow-remote", "--workspace", "/workspace"]
