# Image of the control plane: service, receiver, router, and the init container of model servers. It contains no torch.
#
# `ratchet k8s images` prints how it is built. BASE_DIGEST is the digest of BASE_IMAGE that you have checked. The build fails without it.
ARG BASE_IMAGE=python:3.11-slim-bookworm
ARG BASE_DIGEST
FROM ${BASE_IMAGE}@${BASE_DIGEST}
# pods_ray also has Ray, for the service and the pods of a Ray cluster (compute.engine = "ray").
ARG PACKAGES=pods

# Python packages are below /opt, which every user can read. The lock is complete, and pins each package by hash.
RUN python3 -m venv /opt/ratchet
ENV PATH=/opt/ratchet/bin:$PATH
COPY requirements/${PACKAGES}.lock /opt/ratchet/packages.lock
RUN pip install --no-cache-dir --disable-pip-version-check --no-deps --require-hashes -r /opt/ratchet/packages.lock
COPY dist/*.whl /opt/ratchet/dist/
RUN pip install --no-cache-dir --disable-pip-version-check --no-deps --no-index /opt/ratchet/dist/*.whl && rm -r /opt/ratchet/dist

# The user of the chart. A pod sets it, too; this is for runs without a manifest.
USER 1000:1000
WORKDIR /tmp
ENTRYPOINT []
CMD ["ratchet", "--help"]
