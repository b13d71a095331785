# Training jobs on TRL, and the embedded model server. For jobs with vLLM, set LOCK=grpo_vllm.lock.
# The wheel is built beforehand: python3 -m pip wheel --no-deps --wheel-dir dist .
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
FROM ${PYTHON_IMAGE}
ARG LOCK=train.lock
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PATH=/opt/ratchet/bin:$PATH
RUN python3 -m venv /opt/ratchet
COPY requirements/ /tmp/requirements/
RUN /opt/ratchet/bin/python -m pip install --no-cache-dir --require-hashes -r /tmp/requirements/${LOCK}
COPY dist/ /tmp/dist/
RUN /opt/ratchet/bin/python -m pip install --no-cache-dir --no-deps --no-index /tmp/dist/ratchet-*.whl && /opt/ratchet/bin/python -m compileall -q /opt/ratchet/lib
RUN useradd --uid 1000 --user-group --no-create-home ratchet
USER 1000:1000
WORKDIR /tmp
ENTRYPOINT []
CMD ["python3", "-m", "ratchet.trainers.job.supervisor"]
