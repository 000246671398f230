package policy

import (
	"crypto/x509"
	"fmt"
	"strings"
)

// Whoever reaches server.grpc is taken for Envoy: what it says of a caller's
// identity, of metrics and of itself is believed. So the address is guarded: by
// the mode of a Unix socket, by a certificate with a name that the policy lists
// (proven), or, with server.insecure, by nothing but the network around it.

// proves reports whether who connects shows a certificate whose name is listed.
func (s *Server) proves() bool {
	return s.TLS != nil && s.TLS.ClientCA != "" && len(s.TLS.Clients) > 0
}

// guardedByMode reports whether a file's mode says who may connect.
func guardedByMode(address string) bool { return strings.HasPrefix(address, "unix:/") }

// checkClients: off loopback nobody is believed without proof.
func (d *decoder) checkClients(s *Server) {
	if t := s.TLS; t != nil && len(t.Clients) > 0 && t.ClientCA == "" {
		d.failAt("server.tls.clients", t.Clients[0], "needs server.tls.clientCA: without it nobody shows a certificate")
		return
	}
	if isLoopback(s.GRPC) || s.proves() || s.Insecure {
		return
	}
	missing := "TLS with server.tls.clientCA and server.tls.clients"
	if s.TLS != nil && s.TLS.ClientCA != "" {
		missing = "server.tls.clients, the names of your Envoys' certificates"
	}
	d.failAt("server.grpc", s.GRPC, "is reachable from other machines, and whoever reaches it is taken for Envoy and may call as any tenant: "+
		"use a Unix socket, or "+missing+"; or say server.insecure: true")
}

// Insecure says which addresses of a policy are served to other machines
// without proof of who connects, because it says so.
func (p *Policy) Insecure() []string {
	s := &p.Server
	if isLoopback(s.GRPC) || s.proves() {
		return nil
	}
	return []string{"INSECURE: server.insecure is true and server.grpc " + s.GRPC + " takes whoever reaches it for Envoy: " +
		"without a token it may call as any tenant, forge metrics and read what xDS serves"}
}

// peerNotes: who else is believed without proof, and what is sent in plain
// text to other machines.
func peerNotes(p *Policy) []string {
	var notes []string
	s := &p.Server
	switch {
	case !isLoopback(s.GRPC) || s.proves() || guardedByMode(s.GRPC):
	case strings.HasPrefix(s.GRPC, "unix:"):
		notes = append(notes, "server.grpc "+s.GRPC+" has no file mode: every process of this network namespace is taken for Envoy and may call as any tenant: use unix:/path")
	default:
		notes = append(notes, "server.grpc "+s.GRPC+": every process of this machine or pod is taken for Envoy and may call as any tenant: use a Unix socket, or server.tls with clients")
	}
	if s.Insecure && isLoopback(s.GRPC) {
		notes = append(notes, "server.insecure has no effect: server.grpc "+s.GRPC+" is not reached from other machines")
	}
	if !isLoopback(s.Admin) {
		notes = append(notes, "server.admin "+s.Admin+" is plain HTTP: who is on the way reads server.adminToken")
	}
	if r := p.Store.Redis; r != nil {
		notes = append(notes, plainPeer("store.redis", r.Addresses, r.TLS, r.Password.File != "" || r.Cert != "",
			"can forge counters, revocations and what replicas say of breakers")...)
	}
	if e := p.Breaker.Cascade.Etcd; e != nil {
		notes = append(notes, plainPeer("breaker.cascade.etcd", e.Endpoints, e.TLS, e.Username != "" || e.Cert != "", "can forge what replicas say of breakers")...)
	}
	if o := p.Telemetry.OTLP; o != nil && o.Insecure && !isLoopback(o.Endpoint) {
		notes = append(notes, "telemetry.otlp "+o.Endpoint+" is reached in plain text: who is on the way reads tenants' names and models")
	}
	return notes
}

// plainPeer notes a peer on another machine that is reached without TLS, or
// that asks for no proof.
func plainPeer(field string, addresses []string, tls, proof bool, harm string) []string {
	for _, a := range addresses {
		switch {
		case isLoopback(a):
		case !tls:
			return []string{fmt.Sprintf("%s %s is reached in plain text: who is on the way %s: set %s.tls", field, a, harm, field)}
		case !proof:
			return []string{fmt.Sprintf("%s %s is reached without a password or certificate: who else reaches it %s", field, a, harm)}
		}
	}
	return nil
}

// clientName reads a name of a client certificate.
func clientName() codec[string] {
	return checked(matching(checked(text(1, 256), "exact, or with * at the end", globRule), globPattern),
		"exact, or with * at the end", func(s string) string {
			if s == "*" {
				return "names every certificate of the authority: list names, or a prefix of them"
			}
			return ""
		})
}

// CertificateNames are the names of a certificate by which a client is known:
// its DNS names and URIs. The subject's common name is none.
func CertificateNames(cert *x509.Certificate) []string {
	out := append([]string(nil), cert.DNSNames...)
	for _, u := range cert.URIs {
		out = append(out, u.String())
	}
	return out
}

// MatchesName compares with a name, or a prefix where the pattern ends in *.
func MatchesName(pattern, s string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(s, prefix)
	}
	return pattern == s
}

// Admits is nil where a verified client certificate has one of the names of
// Clients, or there are none.
func (t *TLS) Admits(cert *x509.Certificate) error {
	if len(t.Clients) == 0 {
		return nil
	}
	names := CertificateNames(cert)
	for _, pattern := range t.Clients {
		for _, n := range names {
			if MatchesName(pattern, n) {
				return nil
			}
		}
	}
	return fmt.Errorf("no name of the client's certificate is in server.tls.clients (it has %q)", names)
}

const (
	// leastMessage is what a message may always have: all statistics of some
	// 2,500 clusters (MetricsService), which Envoy sends as one.
	leastMessage = 16 << 20
	// besideBody is what a message holds beside a body: headers, metadata.
	besideBody = 1 << 20
)

// MaxMessage bounds one message on GRPC, in bytes. A body above MaxBody, up to
// here, is refused with 413; a message above ends its stream unread, which
// Envoy shows as 503.
func (s *Server) MaxMessage() int64 { return max(s.MaxBody+besideBody, leastMessage) }
