# The command in a container; untested, see CONTRIBUTING.md. Data are in the folder mounted at /data:
#   docker build -t dyads .
#   docker run --rm -v "$PWD:/data" dyads fit ratings.csv --label rating -o model.dyads
FROM python:3.13-slim AS build
COPY . /source
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM python:3.13-slim
COPY --from=build /wheels /wheels
RUN python -m pip install --no-cache-dir "$(ls /wheels/*.whl)[plot,large,serve]" && rm -r /wheels && useradd --create-home dyads
USER dyads
# Compiled kernels are kept here; mount a volume to keep them between containers.
ENV NUMBA_CACHE_DIR=/home/dyads/.cache/kernels
WORKDIR /data
ENTRYPOINT ["dyads"]
CMD ["--help"]
