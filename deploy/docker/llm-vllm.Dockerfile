# The LLM service on vLLM. From the root:
# docker build -f deploy/docker/llm-vllm.Dockerfile -t cosydit/llm-vllm:0.2.0 .
FROM python:3.12-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN bash deploy/docker/install.sh folder /opt/cosydit

FROM vllm/vllm-openai:v0.20.2
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /var/cache/cosydit cosydit \
  && install -d -o cosydit -g cosydit /var/cache/cosydit
# Beside the image's own packages, which stay as they are.
COPY --from=build /opt/cosydit /opt/cosydit
ENV PYTHONPATH=/opt/cosydit HOME=/var/cache/cosydit HF_HUB_OFFLINE=1 \
  PYTHONDONTWRITEBYTECODE=1 PYTHONIOENCODING=utf-8 PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /var/cache/cosydit
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=8s --start-period=900s \
  CMD ["python3", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=5)"]
ENTRYPOINT []
CMD ["python3", "-m", "llm_service", "--backend=vllm", "--in-container", "--model-dir=/models/llm", \
  "--tokenizer-dir=/models/checkpoint/llm"]
