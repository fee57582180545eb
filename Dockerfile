# The demo on a CPU: docker build -t bas-opd . && docker run --rm -v "$PWD/runs:/app/runs" bas-opd
FROM python:3.12-slim
WORKDIR /app
COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu /src
ENTRYPOINT ["bas-opd"]
CMD ["demo"]
