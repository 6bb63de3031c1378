# The LLM engine and token2wav with its Triton server, for GPUs; each container runs one of them. From the root:
# docker build -f deploy/docker/engines.Dockerfile -t cosydit/engines:0.2.0 .
# Without a GPU, with all tools: --build-arg NAME=cpu --build-arg COMPUTE=cpu -t cosydit/cpu:0.2.0
ARG BASE=debian:bookworm-slim
FROM ${BASE} AS build
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv ca-certificates
ARG NAME=engines
ARG COMPUTE=cuda
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /src
COPY deploy/docker deploy/docker
RUN bash deploy/docker/install.sh packages "$NAME" /opt/cosydit "$COMPUTE"
COPY . .
RUN bash deploy/docker/install.sh project /opt/cosydit

FROM ${BASE}
ARG COMPUTE=cuda
# The GPU kernels are written in the Triton language: its compiler needs a C compiler for their launchers.
RUN apt-get update && apt-get install -y --no-install-recommends python3 libpython3.11 ca-certificates \
  && if [ "$COMPUTE" = cuda ]; then apt-get install -y --no-install-recommends gcc libc6-dev python3-dev; fi \
  && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
  && useradd --uid 10001 --user-group --no-create-home --home-dir /var/cache/cosydit cosydit \
  && install -d -o cosydit -g cosydit /var/cache/cosydit /run/cosydit
COPY --from=build /opt/cosydit /opt/cosydit
ENV PATH=/opt/cosydit/bin:$PATH HOME=/var/cache/cosydit HF_HUB_OFFLINE=1 \
  PYTHONDONTWRITEBYTECODE=1 PYTHONIOENCODING=utf-8 PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /var/cache/cosydit
EXPOSE 8000 8100 18000 8001 8002
# For its default command; Compose and Kubernetes have a check for each service.
HEALTHCHECK --interval=10s --timeout=8s --start-period=900s \
  CMD ["python3", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=5)"]
CMD ["python", "-m", "llm_service", "--backend=auto", "--in-container", "--model-dir=/models/checkpoint/llm", \
  "--grpc-port=8100"]
