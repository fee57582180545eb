# The demo on a CPU; what it writes belongs to you:
#   docker build -t bas-opd . && mkdir -p runs
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD/runs:/app/runs" bas-opd
FROM python:3.12-slim
COPY pyproject.toml README.md LICENSE requirements.lock /src/
COPY src /src/src
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
    --constraint /src/requirements.lock /src
# Any user may write here, so that --user works; without it, nobody is root.
RUN mkdir --mode=777 /app /cache
ENV HOME=/cache HF_HOME=/cache/huggingface
USER 1000:1000
WORKDIR /app
ENTRYPOINT ["bas-opd"]
CMD ["demo"]
