package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// words reads one of a closed set of strings.
func words(names ...string) codec[string] {
	choices := make([]choice[string], len(names))
	for i, s := range names {
		choices[i] = choice[string]{s, s}
	}
	return enum(choices...)
}

// unique refuses a list that says something twice.
func unique[T comparable](c codec[[]T]) codec[[]T] {
	read := c.read
	c.shape.unique = true
	c.read = func(d *decoder, n *yaml.Node, at string, v *[]T) {
		read(d, n, at, v)
		for i, one := range *v {
			if slices.Contains((*v)[:i], one) {
				d.failAt(at+"["+strconv.Itoa(i)+"]", fmt.Sprint(one), "is listed twice")
			}
		}
	}
	return c
}

// HeaderPrefix begins the names of headers that only weir may set.
const HeaderPrefix = "x-weir-"

var headerName = regexp.MustCompile(`^[A-Za-z0-9!#$%&'*+.^_|~-]+$`)

// headerRule keeps the headers that a policy names apart from those that mean
// something else already.
func headerRule(s string) string {
	lower := strings.ToLower(s)
	switch {
	case !headerName.MatchString(s):
		return "must be a header name"
	case strings.HasPrefix(lower, HeaderPrefix), strings.HasPrefix(lower, "x-envoy-"), lower == "authorization", lower == "host", lower == "cookie":
		return "means something else already"
	}
	return ""
}

// namespace reads the name of an Envoy metadata namespace.
func namespace() codec[string] { return text(1, 256) }

// address reads where a server listens.
func address() codec[string] {
	return checked(text(1, 256), "host:port, unix:/path or unix:@abstract", listenRule)
}

func listenRule(s string) string {
	if path, ok := strings.CutPrefix(s, "unix:"); ok {
		switch {
		case len(path) > 1 && (path[0] == '/' || path[0] == '@') && len(path) <= 107:
			return ""
		case len(path) > 107:
			return "a socket's path has at most 107 bytes"
		}
		return "must be unix:/path or unix:@name"
	}
	return hostPort(s, true)
}

// tcpAddress reads where a server is reached.
func tcpAddress() codec[string] {
	return checked(text(1, 256), "host:port", func(s string) string { return hostPort(s, false) })
}

func hostPort(s string, anyHost bool) string {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" && !anyHost || strings.ContainsAny(host, "/@ %") {
		return "must be host:port"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 && !anyHost || strconv.FormatUint(n, 10) != port {
		return "must have a port of 1 to 65535"
	}
	return ""
}

// isLoopback reports whether an address is reached from this machine alone.
func isLoopback(address string) bool {
	if strings.HasPrefix(address, "unix:") {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	return err == nil && loopbackHost(host)
}

func loopbackHost(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// webAddress reads an http or https URL; rule adds to it.
func webAddress(rule func(*url.URL) string) codec[string] {
	return checked(text(1, 2048), "an http or https URL", func(s string) string {
		u, message := parseWeb(s)
		if message == "" && rule != nil {
			return rule(u)
		}
		return message
	})
}

// parseWeb reads an http or https URL. message is "" when it is fine.
func parseWeb(s string) (u *url.URL, message string) {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, "must be an http or https URL"
	case u.User != nil:
		return nil, "must not carry a user or password"
	case u.Fragment != "":
		return nil, "must not have a fragment"
	}
	return u, ""
}

// keyServerRule: whoever can change keys on the way can make any identity.
func keyServerRule(u *url.URL) string {
	if u.Scheme != "https" && !loopbackHost(u.Hostname()) {
		return "must be https: keys fetched in plain text can be forged"
	}
	return ""
}

func claimRule(s string) string {
	if s != "" && (strings.HasPrefix(s, ".") || strings.HasSuffix(s, ".") || strings.Contains(s, "..")) {
		return "must be the name of a claim; dots descend"
	}
	return ""
}

// maxSecret bounds a secret's file in bytes.
const maxSecret = 4096

// secret reads {file: name} and the file with it. The value never gets into
// an error.
func secret() codec[Secret] {
	file := key("file", func(s *Secret) *string { return &s.File }, fileName()).need()
	c := objectThen(func(d *decoder, _ *yaml.Node, at string, s *Secret, _ func(string) bool) {
		s.value = nil
		if !d.secrets {
			return
		}
		value, message := readSecret(s.File)
		if message != "" {
			d.failAt(join(at, "file"), s.File, message)
			return
		}
		s.value = &value
	}, file)
	return maybe(c, func(s *Secret) bool { return s.File == "" })
}

func readSecret(file string) (value, message string) {
	data, err := ReadFile(file, maxSecret)
	if err != nil {
		return "", "cannot be read: " + cause(err)
	}
	value = strings.TrimRight(string(data), "\r\n")
	if value == "" {
		return "", "is empty"
	}
	if strings.ContainsAny(value, "\r\n\x00") {
		return "", "must hold one line"
	}
	return value, ""
}

// cause is an error of the file system without the name, which stands beside.
func cause(err error) string {
	var e *fs.PathError
	if errors.As(err, &e) {
		return e.Err.Error()
	}
	return err.Error()
}
