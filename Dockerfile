# weir is one static binary; the image holds it and CA certificates, runs as
# nobody, needs no shell. The socket's folder and /etc/weir are mounted.
#
#   docker build -t weir --build-arg VERSION=$(git describe --tags --always) .
#   docker run --rm -v /etc/weir:/etc/weir:ro -v /run/weir:/run/weir weir
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /weir ./cmd/weir

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /weir /weir
USER 65534:65534
ENTRYPOINT ["/weir"]
CMD ["serve", "--config", "/etc/weir/weir.yaml"]
