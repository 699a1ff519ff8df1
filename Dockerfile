# docker build -t holdfast .
# docker run -p 127.0.0.1:8000:8000 -v holdfast:/data -e HOLDFAST_SYNC_PUBLIC_URL=https://sync.example.org holdfast

FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=${VERSION}" -o /holdfast ./cmd/holdfast

# Alpine, not an empty image: it has the root certificates that accounts mode needs
# and the wget of the health check.
FROM alpine:3
COPY --from=build /holdfast /usr/local/bin/holdfast
RUN addgroup -S -g 10001 holdfast && adduser -S -D -H -u 10001 -G holdfast holdfast && \
    install -d -m 700 -o holdfast -g holdfast /data
USER holdfast
VOLUME /data
# The operator's door stays on the container's own loopback, where
# `docker exec CONTAINER holdfast queue list` finds it.
ENV HOLDFAST_DATA_DIR=/data HOLDFAST_SYNC_LISTEN=0.0.0.0:8000
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s CMD wget -q -O /dev/null http://127.0.0.1:8001/readyz
ENTRYPOINT ["holdfast"]
CMD ["serve"]
