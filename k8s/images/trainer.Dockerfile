# Image of training jobs on TRL, for cluster.image, and of the embedded model server. NeMo RL has its own image (docs/nemo_rl.md).
#
# `ratchet k8s images` prints how it is built. BASE_DIGEST is the digest of BASE_IMAGE that you have checked. The build fails without it.
# With LOCK=grpo_vllm.lock, jobs can use vLLM (docs/trainers.md).
ARG BASE_IMAGE=python:3.11-slim-bookworm
ARG BASE_DIGEST
FROM ${BASE_IMAGE}@${BASE_DIGEST}
ARG LOCK=train.lock

# Triton compiles its kernels at run time, which needs a C compiler and the headers of libc.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

# Python packages are below /opt, which every user can read. The lock is complete, and pins each package by hash.
RUN python3 -m venv /opt/ratchet
ENV PATH=/opt/ratchet/bin:$PATH
COPY requirements/${LOCK} /opt/ratchet/packages.lock
RUN pip install --no-cache-dir --disable-pip-version-check --no-deps --require-hashes -r /opt/ratchet/packages.lock
COPY dist/*.whl /opt/ratchet/dist/
RUN pip install --no-cache-dir --disable-pip-version-check --no-deps --no-index /opt/ratchet/dist/*.whl && rm -r /opt/ratchet/dist

# The user of the shipped profiles. A pod sets it, too; this is for runs without a manifest.
USER 1000:1000
WORKDIR /tmp
ENTRYPOINT ["/opt/ratchet/bin/python", "-m", "ratchet.trainers.job.pod_entrypoint"]
