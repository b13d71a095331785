# Image of training jobs on NeMo RL, for cluster.nemo_image: NVIDIA's image with Ratchet in it. You accept the licence of that image when you
# pull it; nothing of it is redistributed here. BASE_IMAGE is the release that docs/nemo_rl.md names.
ARG BASE_IMAGE
ARG BASE_DIGEST
FROM ${BASE_IMAGE}@${BASE_DIGEST}
COPY dist/*.whl /tmp/dist/
# The image's environment has what a job needs, in versions that must not change.
RUN uv pip install --python /opt/nemo_rl_venv/bin/python --no-deps --no-index /tmp/dist/*.whl
