# One image for all long-running parts: `postroad operator|worker|intake`. The target `pipeline` is
# another one for the jobs of the data pipeline, with Java, Spark and its jars.
# It runs as uid 10001 on a read-only root file system with a writable /tmp.
# Libraries and postroad lie in layers of their own: a change of postroad is a small layer.
# README.md names the base by its digest; the image's labels have what was named, and the revision.
ARG BASE=python:3.11-slim-bookworm
FROM $BASE AS libraries
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ONLY_BINARY=:all:
COPY locks/run.txt locks/
# Compiled by content, not by time: the copies stay valid wherever the layer is unpacked. Those that
# pip makes are valid by time and would stay (PIP_NO_COMPILE=1 has pip make them).
RUN python -m venv --without-pip /opt/libraries \
 && pip --python /opt/libraries/bin/python install --no-compile --require-hashes -r locks/run.txt \
 && python -m compileall -q --invalidation-mode unchecked-hash /opt/libraries/lib

FROM libraries AS build
COPY locks/build.txt locks/
RUN python -m venv /opt/build && /opt/build/bin/pip install --require-hashes -r locks/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY operator operator
RUN /opt/build/bin/hatchling build -t wheel \
 && pip --python /opt/libraries/bin/python install --no-compile --no-deps --no-index \
        --target /opt/postroad dist/*.whl \
 && python -m compileall -q --invalidation-mode unchecked-hash /opt/postroad \
 && PYTHONPATH=/opt/postroad /opt/postroad/bin/postroad --version

# PySpark is in the registry as source alone: Spark's jars with Python beside them.
FROM libraries AS pipeline-libraries
COPY locks/build.txt locks/pipeline.txt locks/
RUN python -m venv /opt/build && /opt/build/bin/pip install --require-hashes -r locks/build.txt \
 && /opt/build/bin/pip install --no-compile --require-hashes --no-build-isolation \
        --no-binary pyspark --target /opt/pipeline -r locks/pipeline.txt \
 && rm -rf /opt/pipeline/pyspark/examples /opt/pipeline/pyspark/data /opt/pipeline/bin \
 && python -m compileall -q --invalidation-mode unchecked-hash /opt/pipeline

# The jars, in the root folder. A build context of this name takes the place of this stage, where
# the jars are there already: --build-context jars=$HOME/.cache/postroad/jars
FROM $BASE AS jars
RUN mkdir -p /usr/share/man/man1 && apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends maven
WORKDIR /src/postroad
COPY operator/postroad/__init__.py operator/postroad/errors.py ./
COPY operator/postroad/pipeline/__init__.py pipeline/
COPY operator/postroad/pipeline/java/__init__.py operator/postroad/pipeline/java/jars.py \
     operator/postroad/pipeline/java/jars.txt pipeline/java/
RUN PYTHONPATH=/src python -c \
    "from pathlib import Path; from postroad.pipeline.java import jars; jars.fetch(Path('/'))"

FROM $BASE AS runtime
LABEL org.opencontainers.image.title="postroad" \
      org.opencontainers.image.description="Distributed mail queues on Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0"
# Nothing is installed at run time, so nothing that installs is left. Without SOURCE_DATE_EPOCH,
# /etc/shadow would have the day of the build.
RUN groupadd --gid 10001 postroad \
 && SOURCE_DATE_EPOCH=0 useradd --uid 10001 --gid 10001 --home-dir /tmp --no-create-home \
        --shell /usr/sbin/nologin postroad \
 && for package in wheel setuptools pip; do \
        if python -m pip show --quiet $package 2>/dev/null; then \
            python -m pip uninstall --yes --quiet --root-user-action ignore $package; \
        fi; \
    done \
 && rm -rf /usr/share/python-wheels /usr/local/lib/python3.*/ensurepip \
        /usr/lib/python3.*/ensurepip /var/cache/apt /var/lib/apt/lists
COPY --from=libraries /opt/libraries /opt/libraries
ENV PATH=/opt/postroad/bin:/opt/libraries/bin:$PATH \
    PYTHONPATH=/opt/postroad \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
ENTRYPOINT ["postroad"]

FROM runtime AS pipeline
# The directory is missing in small images, and Java's package needs it.
RUN mkdir -p /usr/share/man/man1 && apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        openjdk-17-jre-headless \
 && rm -rf /var/cache/apt /var/lib/apt/lists
COPY --from=pipeline-libraries /opt/pipeline /opt/pipeline
COPY --from=jars *.jar /opt/jars/
ENV PYTHONPATH=/opt/postroad:/opt/pipeline \
    POSTROAD_PIPELINE_JARS=/opt/jars
COPY --from=build /opt/postroad /opt/postroad
USER 10001:10001

FROM runtime
COPY --from=build /opt/postroad /opt/postroad
USER 10001:10001
EXPOSE 2525 8080
# Last, so that another revision with the same files has the same layers.
ARG BASE
ARG REVISION=unknown
LABEL org.opencontainers.image.base.name=$BASE \
      org.opencontainers.image.revision=$REVISION
