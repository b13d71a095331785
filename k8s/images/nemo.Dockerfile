# Training jobs on NeMo RL: NVIDIA's image with Ratchet in it. You accept the licence of that image when you pull it; nothing of it is
# redistributed here. NEMO_IMAGE names the release that docs/nemo_rl.md pins.
ARG NEMO_IMAGE
FROM ${NEMO_IMAGE}
COPY dist/ /tmp/dist/
# The image's environment has the libraries of a job already; a job needs nothing else of Ratchet's own requirements.
RUN python3 -m pip install --no-cache-dir --no-deps --no-index /tmp/dist/ratchet-*.whl
