# The embedded LLM and token2wav with the Triton server of a wheel, without a GPU. From the root:
# docker build -f deploy/docker/cpu.Dockerfile -t cosydit/cpu:0.2.0 .
FROM python:3.11-slim-bookworm AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /src
COPY deploy/docker deploy/docker
RUN bash deploy/docker/install.sh packages cpu /opt/cosydit
COPY . .
RUN bash deploy/docker/install.sh project /opt/cosydit

FROM python:3.11-slim-bookworm
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /var/cache/cosydit cosydit \
  && install -d -o cosydit -g cosydit /var/cache/cosydit /run/cosydit
COPY --from=build /opt/cosydit /opt/cosydit
ENV PATH=/opt/cosydit/bin:$PATH HOME=/var/cache/cosydit HF_HUB_OFFLINE=1 \
  PYTHONDONTWRITEBYTECODE=1 PYTHONIOENCODING=utf-8 PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /var/cache/cosydit
EXPOSE 8000 18000 8001 8002
# For its default command; compose and Kubernetes have a check for each use.
HEALTHCHECK --interval=10s --timeout=8s --start-period=120s \
  CMD ["python3", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=5)"]
CMD ["python", "-m", "llm_service", "--backend=embedded", "--in-container", "--model-dir=/models/checkpoint/llm"]
