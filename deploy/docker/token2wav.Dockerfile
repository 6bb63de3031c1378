# token2wav on NVIDIA's Triton. From the root:
# docker build -f deploy/docker/token2wav.Dockerfile -t cosydit/token2wav:0.2.0 .
FROM nvcr.io/nvidia/tritonserver:26.04-py3 AS build
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY deploy/docker deploy/docker
# The server's python backend embeds this image's Python, for which the lock is made.
RUN python3 -c "import sys; sys.exit(sys.version_info[:2] != (3, 12))" \
  && bash deploy/docker/install.sh packages token2wav /opt/cosydit
COPY . .
RUN bash deploy/docker/install.sh project /opt/cosydit

FROM nvcr.io/nvidia/tritonserver:26.04-py3
# A replica's GPU kernels are written in the Triton language: its compiler needs a C compiler for their launchers.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev libpython3-dev \
  && rm -rf /var/lib/apt/lists/* \
  && useradd --uid 10001 --user-group --no-create-home --home-dir /var/cache/cosydit cosydit \
  && install -d -o cosydit -g cosydit /var/cache/cosydit /run/cosydit
COPY --from=build /opt/cosydit /opt/cosydit
# The base's PYTHONPATH, if it has one, would put its packages before those of the environment.
ENV PATH=/opt/cosydit/bin:$PATH PYTHONPATH= HOME=/var/cache/cosydit \
  PYTHONDONTWRITEBYTECODE=1 PYTHONIOENCODING=utf-8 PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /var/cache/cosydit
EXPOSE 18000 8001 8002
HEALTHCHECK --interval=10s --timeout=8s --start-period=900s \
  CMD ["python3", "-m", "token2wav_service.serving.process.health", "--address=127.0.0.1:18000", "--timeout-s=5"]
ENTRYPOINT []
CMD ["python", "-m", "token2wav_service.serving", "--host=0.0.0.0", \
  "--model-repository=/run/cosydit/model_repository", "--set=model_dir=/models/checkpoint/token2wav", \
  "--set=llm_tokenizer_dir=/models/checkpoint/llm", "--set=voices_dir=/models/checkpoint/voices", \
  "--set=llm_api_base=http://llm:8000", "--set=device=cuda", "--set=dtype=float16"]
