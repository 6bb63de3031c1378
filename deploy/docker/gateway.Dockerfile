# The gateway. From the root: docker build -f deploy/docker/gateway.Dockerfile -t cosydit/gateway:0.2.0 .
ARG BASE=debian:bookworm-slim
FROM ${BASE} AS build
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv gcc libc6-dev ca-certificates
WORKDIR /src
COPY deploy/docker deploy/docker
RUN bash deploy/docker/install.sh packages gateway /opt/cosydit
COPY . .
RUN bash deploy/docker/install.sh project /opt/cosydit && bash deploy/docker/install.sh slim /opt/cosydit

FROM ${BASE}
RUN apt-get update && apt-get install -y --no-install-recommends python3 ca-certificates \
  && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
  && find /usr/lib/python3.11 \( -name __pycache__ -o -name test -o -name pydoc_data \) -prune -exec rm -rf {} + \
  && useradd --uid 10001 --user-group --no-create-home --home-dir /var/cache/cosydit cosydit \
  && install -d -o cosydit -g cosydit /var/cache/cosydit /data/voices
COPY --from=build /opt/cosydit /opt/cosydit
# Bytecode of what a gateway opens, and of nothing else; what can't be loaded ends the build here.
RUN /opt/cosydit/bin/python -c "import gateway.serving, gateway.audio.ffmpeg, wetext"
ENV PATH=/opt/cosydit/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONIOENCODING=utf-8 PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /var/cache/cosydit
EXPOSE 8080 50051 9464
# Readiness; liveness, for what ends a container by it, is /livez on 9464.
HEALTHCHECK --interval=10s --timeout=8s --start-period=120s \
  CMD ["python3", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/readyz', timeout=5)"]
CMD ["python", "-m", "gateway", "--host=0.0.0.0", "--metrics-port=9464", "--llm-url=dns:grpc://llm:8100", \
  "--token2wav-url=dns:token2wav:8001", \
  "--tokenizer-dir=/models/checkpoint/llm", "--voices-dir=/models/checkpoint/voices"]
