# The image of the chart. Two stages: the first has pip and compilers, the second only what runs.
# Nothing is taken from the build context but the sources of the wheel.
ARG PYTHON=3.12-slim-bookworm

FROM python:${PYTHON} AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY collector collector
COPY analyzers analyzers
COPY signatures signatures
COPY queries queries
COPY slurm slurm
RUN python -m venv /opt/firstfault \
 && /opt/firstfault/bin/pip install --no-cache-dir --disable-pip-version-check '.[k8s,s3]' \
 && /opt/firstfault/bin/pip uninstall --yes --disable-pip-version-check pip \
 && /opt/firstfault/bin/python -I -m compileall -q /opt/firstfault/lib

FROM python:${PYTHON}
LABEL org.opencontainers.image.title="firstfault" \
      org.opencontainers.image.description="Finds what failed first when a distributed training job dies" \
      org.opencontainers.image.licenses="MIT"
COPY --from=build /opt/firstfault /opt/firstfault
ENV PATH=/opt/firstfault/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# the chart mounts /var/lib/firstfault; everything else is read only
USER 65532:65532
ENTRYPOINT ["/opt/firstfault/bin/python", "-I", "/opt/firstfault/bin/firstfault"]
CMD ["watch"]
