# syntax=docker/dockerfile:1
# One static binary and CA certificates, nothing else: no shell, no package manager, no user but a number. It writes no
# file, so the root file system can be read-only.
FROM --platform=$BUILDPLATFORM golang:1.26.8-alpine AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ARG TARGETOS TARGETARCH VERSION=dev REVISION=unknown
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false \
    -ldflags "-s -w -X main.version=$VERSION -X main.revision=$REVISION" -o /out/outboxcdc ./cmd/outboxcdc

FROM scratch
ARG VERSION=dev REVISION=unknown
LABEL org.opencontainers.image.title="outboxcdc" \
      org.opencontainers.image.description="Delivers a Postgres transactional outbox to Kafka by tailing the WAL" \
      org.opencontainers.image.source="https://github.com/outboxcdc/outboxcdc" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
# The golang image has them; TLS to Postgres with verify-full needs them unless sslrootcert names others.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/outboxcdc /outboxcdc
# A number, because there is no /etc/passwd, and because Kubernetes' runAsNonRoot asks for one.
USER 65532:65532
EXPOSE 9464
# SIGTERM, the default, drains. The grace period must be longer than shutdown_timeout (30s).
ENTRYPOINT ["/outboxcdc"]
CMD ["run"]
