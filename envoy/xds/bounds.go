package xds

import (
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The bounds of what is kept of those who connect, whoever they are. Beside
// them stand Options.MaxNodes, Options.MaxStreams and what a message may have.
const (
	maxIdentity = 1024 // bytes of node.id and of node.cluster
	maxRelease  = 64   // bytes of a release that is no Envoy's
	maxTypeURL  = 256  // bytes
	maxTypes    = 20   // on a stream; also of those counted that are not served
	maxNames    = 100_000
	maxName     = 4096      // bytes
	maxHeld     = 512 << 20 // bytes of the names of all streams
	maxUnknown  = 100       // names a node asks for in vain
	maxWords    = 2048
	maxPending  = 8 // answers of a type that wait for their word: caches send one after the other's

	// maxPrivate bounds the resources in the caches of nodes that refused some.
	maxPrivate = 2_000_000
)

// weigh is about how many bytes of memory a name costs: here, and in the
// subscription of the cache.
func weigh(name string) int64 { return int64(len(name)) + 200 }

// lawfulRequest checks what a request asks for before anything of it is kept.
func (r *roster) lawfulRequest(st *stream, h *heard) error {
	if _, known := st.types[h.typeURL]; !known && (len(st.types) == maxTypes || len(h.typeURL) > maxTypeURL) {
		r.counts.refused[refusedTypes]++
		return status.Errorf(codes.ResourceExhausted, "a stream has at most %d types, whose names have at most %d bytes", maxTypes, maxTypeURL)
	}
	if len(h.names) > maxNames || len(h.known) > maxNames {
		r.counts.refused[refusedNames]++
		return errNames()
	}
	for _, name := range h.names {
		if len(name) > maxName {
			r.counts.refused[refusedNames]++
			return status.Errorf(codes.InvalidArgument, "a name has at most %d bytes (got %d)", maxName, len(name))
		}
	}
	return nil
}

func errNames() error {
	return status.Errorf(codes.ResourceExhausted, "a stream asks for at most %d names of a type", maxNames)
}

// hold counts what a request added to the names that are kept.
func (r *roster) hold(k *talk, before int64, h *heard, first bool) error {
	if first {
		for name, version := range h.known {
			k.weight += weigh(name) + int64(len(version))
		}
	}
	r.held += k.weight - before
	switch {
	case len(k.names) > maxNames:
		r.counts.refused[refusedNames]++
		return errNames()
	case r.held > r.maxHeld:
		r.counts.refused[refusedNames]++
		return status.Errorf(codes.ResourceExhausted, "all streams together ask for more names than weir keeps")
	}
	return nil
}

// cutText bounds a text that came from outside, such as for the log.
func cutText(text string, most int) string {
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "")
	}
	return text
}
